"""Write examples/prompts.parquet: 72 chat prompts of five kinds, all written for this project (Apache-2.0 like the rest).

    python examples/make_prompts.py            # writes prompts.parquet beside this file

Columns: id, kind, messages (a chat), and max_tokens and temperature, which are null where the job's own default holds.
The passages make up most of the extraction and summary prompts, so an answer that copies from them can be drafted by prompt lookup.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])), nullable=False),
        pa.field("max_tokens", pa.int32()),
        pa.field("temperature", pa.float64()),
    ]
)

PASSAGES = {
    "ferry": """The ferry Halvard leaves Port Anselm at 7:40 every morning and reaches the island of Torrey at 9:15. It carries sixty
passengers, eleven cars and the island's post. In winter the crossing is cancelled when the wind passes force eight, which happened
nineteen times last year. Captain Ines Moller has sailed the route since 2009 and knows most of her passengers by name. A return
ticket costs 18 crowns, children under seven travel free, and bicycles are charged 4 crowns each way. The last boat back to the
mainland leaves Torrey at 18:05; whoever misses it sleeps at the Lantern Inn, the only hotel on the island.""",
    "bees": """In the spring of 2021 the town of Weller put twelve beehives on the flat roof of its library. The first summer gave only
31 kilograms of honey, because two colonies swarmed and settled in the bell tower of the church across the square. The keeper, Tomas
Adeyemi, caught both swarms with a ladder and a cardboard box. In the second summer the hives gave 140 kilograms, which the library
sold in small jars to pay for new children's books. A class of ten-year-olds now weighs every hive on the first Monday of the month
and writes the numbers on a chart beside the lending desk.""",
    "bridge": """The old iron bridge at Carrow was built in 1888 for carts and cattle. Engineers who inspected it in March found rust in
forty-two of its ninety-six joints and reported that the northern span could carry no more than three tonnes. The council has closed
it to lorries and lowered the speed limit to 20 kilometres an hour. Replacing the joints would cost 2.4 million and take nine months;
a new bridge beside the old one would cost 11 million and take three years. Shopkeepers on the east bank fear that nine months of
closure would ruin them. The council will vote on 14 June, after two evenings on which anyone may speak.""",
    "oven": """To light the bread oven, open the flue and build a small fire of dry beech in the middle of the floor. After forty minutes
push the embers to the left side and add two split logs. When the dome has turned from black to grey the bricks are hot enough, which
usually takes two hours. Rake out the embers, close the flue and wait fifteen minutes so that the heat evens out. Throw a pinch of
flour on the floor: if it browns in ten seconds the oven is ready, and if it burns at once you must wait. Bake the large loaves first,
for fifty minutes, and the rolls last, for eighteen.""",
    "museum": """The Museum of Small Machines opened on 3 October 1994 in a former glove factory. Its collection began with the 212
typewriters of a retired postman, Oskar Lindqvist, who had repaired them in his kitchen. Today it owns about 5,600 objects: clocks,
sewing machines, adding machines, cameras, music boxes and one steam-driven egg beater. Visitors may touch anything that has a green
label. The most popular exhibit is a mechanical fortune teller from 1911, which has told more than a million fortunes since the museum
restored it. Entry costs 6 euros, the museum is closed on Tuesdays, and school classes come free of charge when they book a week ahead.""",
    "storm": """The storm reached the coast shortly after midnight on 9 November. Gusts of 151 kilometres an hour were measured at Point
Sorrel before the instrument broke. About 23,000 homes lost power, most of them in the three valleys north of Dunmore, and the railway
was blocked by fallen trees in seventeen places. Nobody was killed, although a driver was hurt when a chimney fell on his van in Mill
Street. Crews from four neighbouring districts worked through the day, and by eight in the evening all but 900 homes had light again.
The weather office said that it had been the strongest November storm since 1987.""",
    "recycling": """From 1 April glass will be collected on Wednesdays instead of Fridays. Please put the green box at the edge of the
pavement before six in the morning, with the lid closed. Paper and cardboard stay in the blue bin and are still collected every second
Monday. Batteries, paint and light bulbs do not belong in any bin: bring them to the yard in Quarry Lane, which is open from Tuesday to
Saturday between nine and five. Households that have not received a green box may ask for one by writing to boxes@harrowdale.example or
by calling 555 0142. There is no charge for the first box; a second one costs 7.50.""",
    "tide": """Tides rise and fall because the moon pulls more strongly on the near side of the earth than on the far side. The
difference stretches the oceans into two bulges, one facing the moon and one facing away from it, and the turning earth carries every
coast through both of them in about twenty-five hours. The sun does the same with a little less than half the strength. When sun and
moon stand in line, at new and full moon, the two effects add up to spring tides; when they stand at right angles, the tides are weak
and are called neap tides. Narrow bays can multiply the effect: in some of them the water rises by more than twelve metres.""",
    "contract": """This agreement is made between Bellweather Farm (the Seller) and Corin & Daughters Bakery (the Buyer). The Seller shall
deliver 400 kilograms of wheat flour on the first working day of each month. The price is 0.92 per kilogram and is fixed until
31 December. The Buyer shall pay within twenty-one days of delivery. If a delivery is more than three working days late, the Buyer may
deduct five per cent of its price. Either party may end this agreement by giving sixty days' notice in writing. Flour that is damp,
mouldy or infested may be returned within seven days, and the Seller shall replace it at no cost. Disputes are heard in Marlow.""",
    "orchestra": """When the conductor fell ill two hours before the concert, the second oboist, Priya Raman, offered to take his place.
She had studied conducting for a year in Leipzig but had never stood before a full orchestra. The players voted with their hands, and
all but one were raised. She changed nothing in the programme: an overture, a violin concerto, and after the interval a long symphony
that she knew by heart. The soloist, Daniel Okafor, said afterwards that he had never felt so well accompanied. The audience stood for
six minutes. The conductor, who had listened on the radio from his hospital bed, sent her his baton the next morning.""",
    "survey": """The lighthouse keeper's log for the week reads as follows. Monday: wind from the south-west, force four, two trawlers
and a yacht passed before noon, lamp lit at 16:52. Tuesday: fog until three in the afternoon, horn sounded for nine hours, no vessel
seen. Wednesday: clear and cold, eleven vessels, among them the survey ship Meridian, which asked by radio for our water depth and was
told fourteen metres. Thursday: wind rising to force seven, the supply boat turned back, bread baked from the last flour. Friday:
force nine at dawn, one pane of the lantern cracked and was covered with a board, no sleep. Saturday: wind falling, the supply boat
came with flour, letters and a new pane, which was fitted by four o'clock. Sunday: calm, nineteen vessels, the lamp glass cleaned and
the brass polished, a whale seen two miles to the east. The oil in the tank stands at 310 litres, which is enough for five weeks. The
spare wick has been used and another should be sent. The barometer reads low again this evening, and the gulls have come in from the
sea, so I expect the next week to be no quieter than this one.""",
    "minutes": """Minutes of the allotment society, 12 February. Present: Ruth Calder (chair), Samuel Boateng, Lena Fischer, Joao Pires
and nineteen members. The minutes of the last meeting were read and agreed. The treasurer reported a balance of 1,284.60, of which 300
is set aside for the new water tank. Twenty-three plots are paid for, two are in arrears and one has been given up; the waiting list
stands at fourteen names. Mr Boateng asked that dogs be kept on leads after two rows of young leeks had been dug up; this was agreed
by eleven votes to six. Ms Fischer offered to order seed potatoes for everyone before 1 March, at 2.10 a kilogram. Mr Pires reported
that the shed lock had been forced on the night of 28 January and that a wheelbarrow and four spades were missing. The chair will ask
three firms for the price of a stronger door. The summer open day was set for Saturday 21 June, from two until five, with tea, a plant
sale and a prize for the heaviest marrow. Any other business: the compost bays are full, and members are asked to take some home. The
meeting closed at 20:50. The next meeting will be held on 9 April in the same room.""",
}

EXTRACTIONS = [
    ("ferry", "Copy, word for word, the sentence that gives the price of a return ticket."),
    ("ferry", "List every time of day in the passage, each with what happens then, one per line."),
    ("bees", "Copy the two sentences that say how much honey was harvested."),
    ("bees", "Return the passage unchanged, except that every number is written in digits."),
    ("bridge", "List all the costs and durations in the passage as `cost: duration` lines."),
    ("bridge", "Repeat the passage exactly, and put the name of the town in capital letters."),
    ("oven", "Turn the passage into a numbered list of steps, using its own words."),
    ("museum", "Give the opening date, the price, the closing day and the number of objects as JSON."),
    ("museum", "Copy the passage and replace every year by [YEAR]."),
    ("storm", "Extract every number together with the noun that it counts, one per line."),
    ("recycling", "Copy every sentence that tells the reader to do something."),
    ("recycling", "Which e-mail address and telephone number are given? Answer with the sentence that contains them."),
    ("contract", "List the duties of the Seller, quoting the agreement."),
    ("contract", "Copy the passage, replacing `the Seller` by `Bellweather` and `the Buyer` by `Corin`."),
    ("orchestra", "List the people who are named, each with the sentence in which they are named."),
    ("survey", "Copy the log entries for Thursday, Friday and Saturday exactly as they stand."),
    ("survey", "Write the log as a list with one day per line, keeping the keeper's own words."),
    ("minutes", "List every decision that was made, in the words of the minutes."),
    ("minutes", "Extract all dates and amounts of money, one per line, with the words around them."),
    ("tide", "Copy the sentence that explains spring tides, then the one that names the strength of the sun."),
]

SUMMARIES = {
    "ferry": "Summarise the passage in one sentence.",
    "bees": "Summarise the passage for a child of eight, in two sentences.",
    "bridge": "Summarise the two choices before the council in a few neutral sentences.",
    "oven": "Summarise the passage in three short steps.",
    "museum": "Write a two-sentence description of the museum for a travel guide.",
    "storm": "Summarise the damage in one sentence, like a newspaper headline followed by one line.",
    "recycling": "Summarise what changes and what stays the same.",
    "tide": "Explain the passage in two sentences, without any numbers.",
    "contract": "Summarise the agreement in plain language, in at most three sentences.",
    "orchestra": "Retell the passage in two sentences.",
    "survey": "Summarise the week in three sentences, and say what the keeper needs.",
    "minutes": "Summarise the meeting for a member who was absent, in at most four sentences.",
}

CHATS = [
    "What is the capital of France, and what is it known for?",
    "I have eggs, rice and spinach at home. What can I cook in half an hour?",
    "Explain to a ten-year-old why the sky is blue.",
    "Write a short, polite e-mail asking my landlord to repair the heating.",
    "What is the difference between weather and climate?",
    "Give me three tips for sleeping better.",
    "Tell me a short story about a lighthouse and a lost dog.",
    "How does a bicycle stay upright when it is moving?",
    "Suggest five names for a small bookshop by the sea.",
    "My friend is nervous about her first day at a new job. What could I say to her?",
    "Write a four-line poem about autumn rain.",
    "What should I pack for a three-day walk in the mountains?",
    "Who was Marie Curie? Answer in three sentences.",
    "Translate into French: Good morning, I would like two coffees and a newspaper, please.",
]

DIALOGUES = [
    [
        ("system", "You are a patient guide in a botanical garden. Answer in at most three sentences."),
        ("user", "Why do some trees lose their leaves in autumn?"),
        ("assistant", "Leaves lose water all the time. In winter the roots take up little water, so the tree drops its leaves to save it."),
        ("user", "Then why do pines keep their needles?"),
    ],
    [
        ("system", "You help people plan train journeys and always repeat the facts that you were given."),
        ("user", "My train leaves at 9:12 and the ride takes 95 minutes. When do I arrive?"),
        ("assistant", "A ride of 95 minutes is one hour and 35 minutes, so you arrive at 10:47."),
        ("user", "And if it is 20 minutes late?"),
    ],
]

CODES = [
    "Write a Python function that returns the n-th Fibonacci number, and explain it in one sentence.",
    "Write a Python function `is_palindrome(text)` that ignores case and spaces.",
    "What does this Python code print?\n\n```python\nfor i in range(3):\n    print(i * i)\n```",
    "Fix the mistake in this function and return the whole function:\n\n```python\ndef mean(values):\n    total = 0\n"
    "    for value in values:\n        total = value\n    return total / len(values)\n```",
    "Rename the variable `x` to `price` everywhere and return the whole code:\n\n```python\ndef with_tax(x, rate):\n    if x < 0:\n"
    '        raise ValueError(f"x must not be negative, got {x}")\n    tax = x * rate\n    return x + tax\n```',
    "Add type hints to this code and return all of it:\n\n```python\ndef count_words(text):\n    counts = {}\n"
    "    for word in text.split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts\n```",
    "Write a SQL query that lists the ten customers with the most orders from a table orders(customer_id, ordered_at, total).",
    "Write a shell command that counts the lines of all .py files below the current folder.",
    "Explain what a hash table is and when one would use it.",
    'Convert this JSON to YAML:\n\n```json\n{"name": "ferry", "seats": 60, "stops": ["Port Anselm", "Torrey"], "open": true}\n```',
]

SUMS = [
    "What is 17 + 26?",
    "What is 9 times 12?",
    "A box holds 24 apples. How many apples are in 7 boxes?",
    "Anna has 50 coins. She gives 18 to Ben and finds 5 more. How many coins has she now?",
    "What is 144 divided by 12?",
    "A train travels 180 kilometres in 2 hours. What is its average speed?",
    "A shirt costs 40 and is reduced by a quarter. What does it cost now?",
    "Count from 1 to 20, separated by commas.",
    "Write the multiplication table of 7, from 7 x 1 to 7 x 10, one per line.",
    "Three friends share 57 marbles equally. How many does each of them get?",
    "A recipe for 4 people needs 300 grams of flour. How much is needed for 6 people?",
    "What is the next number: 2, 4, 8, 16, 32?",
    "Is 91 a prime number? Give the reason.",
    "How many minutes are there in 3 hours and 25 minutes?",
]


def table() -> pa.Table:
    """All prompts as the Arrow table that the Parquet file holds."""
    return pa.Table.from_pylist(rows(), schema=SCHEMA)


def rows() -> list[dict[str, Any]]:
    """All prompts, the kinds mixed so that neighbours differ in length, as in a real folder."""
    found = list(_rows())
    return [found[i] for start in range(7) for i in range(start, len(found), 7)]


def _rows() -> Iterator[dict[str, Any]]:
    yield from _kind("extraction", [_about(name, task) for name, task in EXTRACTIONS], max_tokens=160, temperature=0.0)
    yield from _kind("summary", [_about(name, task) for name, task in SUMMARIES.items()], max_tokens=96)
    yield from _kind("chat", [_user(text) for text in CHATS] + [_dialogue(turns) for turns in DIALOGUES])
    yield from _kind("code", [_user(text) for text in CODES], max_tokens=128, temperature=0.0)
    yield from _kind("arithmetic", [_user(text) for text in SUMS], max_tokens=64, temperature=0.0)


def _kind(kind: str, chats: list[list[dict[str, str]]], **overrides: float) -> Iterator[dict[str, Any]]:
    for index, messages in enumerate(chats):
        yield {"id": f"{kind}-{index:02d}", "kind": kind, "messages": messages, **overrides}


def _about(name: str, task: str) -> list[dict[str, str]]:
    return _user(f"{task}\n\n{PASSAGES[name].replace(chr(10), ' ')}")


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _dialogue(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


if __name__ == "__main__":
    pq.write_table(table(), Path(__file__).with_name("prompts.parquet"))
