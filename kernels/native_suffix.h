// A suffix automaton of token runs that grows by single tokens, with how often each run came and what most often followed it. The caller
// owns all memory. kernels/suffix.py holds the reference and the documentation.
#pragma once
#include <stdint.h>

enum { NO_EDGE = -1, UP = 64 };  // UP: suffix links that a new token's count climbs

typedef struct {
  int64_t room, table_mask;  // room in tokens: n of them make at most 2 n states and 3 n edges (Blumer et al. 1985)
  int64_t *sizes;            // states, edges, tokens
  int32_t *length, *link, *count, *best, *head;          // by state; best: the token that followed most often, or -1
  int32_t *edge_from, *edge_token, *edge_to, *edge_next;  // by edge
  int32_t *table;                                         // edges by (from, token), open addressing
} Automaton;

static inline uint64_t edge_place(const Automaton *a, int32_t from, int32_t token) {
  uint64_t x = ((uint64_t)(uint32_t)from << 32 | (uint32_t)token) * 0x9E3779B97F4A7C15ull;
  return (x ^ x >> 29) & (uint64_t)a->table_mask;
}

static inline int32_t edge_of(const Automaton *a, int32_t from, int32_t token) {
  for (uint64_t at = edge_place(a, from, token);; at = (at + 1) & (uint64_t)a->table_mask) {
    const int32_t edge = a->table[at];
    if (edge == NO_EDGE || (a->edge_from[edge] == from && a->edge_token[edge] == token)) return edge;
  }
}

static void add_edge(Automaton *a, int32_t from, int32_t token, int32_t to) {
  const int32_t edge = (int32_t)a->sizes[1]++;
  a->edge_from[edge] = from, a->edge_token[edge] = token, a->edge_to[edge] = to;
  a->edge_next[edge] = a->head[from], a->head[from] = edge;
  uint64_t at = edge_place(a, from, token);
  while (a->table[at] != NO_EDGE) at = (at + 1) & (uint64_t)a->table_mask;
  a->table[at] = edge;
}

static int32_t add_state(Automaton *a, int32_t length, int32_t link, int32_t count, int32_t best) {
  const int32_t state = (int32_t)a->sizes[0]++;
  a->length[state] = length, a->link[state] = link, a->count[state] = count, a->best[state] = best, a->head[state] = NO_EDGE;
  return state;
}

// The state of a run that is `p`'s longest and `token`, when state q holds longer runs as well.
static int32_t split(Automaton *a, int32_t p, int32_t token, int32_t q) {
  const int32_t copy = add_state(a, a->length[p] + 1, a->link[q], a->count[q], a->best[q]);
  for (int32_t edge = a->head[q]; edge != NO_EDGE; edge = a->edge_next[edge]) add_edge(a, copy, a->edge_token[edge], a->edge_to[edge]);
  for (; p != -1; p = a->link[p]) {
    const int32_t edge = edge_of(a, p, token);
    if (edge == NO_EDGE || a->edge_to[edge] != q) break;
    a->edge_to[edge] = copy;
  }
  a->link[q] = copy;
  return copy;
}

static int32_t grow(Automaton *a, int32_t last, int32_t token) {
  const int32_t known = edge_of(a, last, token);
  if (known != NO_EDGE) {
    const int32_t q = a->edge_to[known];
    return a->length[q] == a->length[last] + 1 ? q : split(a, last, token, q);
  }
  const int32_t state = add_state(a, a->length[last] + 1, 0, 0, -1);
  int32_t p = last;
  for (; p != -1 && edge_of(a, p, token) == NO_EDGE; p = a->link[p]) add_edge(a, p, token, state);
  if (p != -1) {
    const int32_t q = a->edge_to[edge_of(a, p, token)];
    a->link[state] = a->length[q] == a->length[p] + 1 ? q : split(a, p, token, q);
  }
  return state;
}

static int32_t extend(Automaton *a, int32_t last, int32_t token) {
  const int32_t state = grow(a, last, token);
  int32_t up = 0;
  for (int32_t s = state; s > 0 && up < UP; s = a->link[s], up++) a->count[s]++;
  a->count[0]++;
  up = 0;
  for (int32_t p = last; p != -1 && up <= UP; p = a->link[p], up++) {
    if (a->best[p] == token) continue;
    const int32_t own = a->edge_to[edge_of(a, p, token)];
    if (a->best[p] < 0 || a->count[own] > a->count[a->edge_to[edge_of(a, p, a->best[p])]]) a->best[p] = token;
  }
  return state;
}

// Append counts[line] of tokens [lines, width] to each line, whose last state is last[line]. Returns how many lines were done: for the
// next one there was no room.
int64_t drawloom_suffix_add(Automaton *a, const int64_t *tokens, const int64_t *counts, int64_t lines, int64_t width, int64_t *last) {
  for (int64_t line = 0; line < lines; line++)
    for (int64_t k = 0; k < counts[line]; k++) {
      if (a->sizes[2] == a->room) return line;
      a->sizes[2]++;
      last[line] = extend(a, (int32_t)last[line], (int32_t)tokens[line * width + k]);
    }
  return lines;
}

// The longest suffix of each tail [lines, width] (its last lengths[line] tokens count) that is a run, and what most often followed: up to
// `most` tokens while the product of their shares is at least `least_share`. matched, num [lines]; drafted [lines, most].
void drawloom_suffix_draft(const Automaton *a, const int64_t *tails, const int64_t *lengths, int64_t lines, int64_t width, int64_t most,
                           double least_share, int64_t *matched, int64_t *num, int64_t *drafted) {
  for (int64_t line = 0; line < lines; line++) {
    int32_t state = 0;
    int64_t run = 0;
    for (int64_t k = width - lengths[line]; k < width; k++) {
      const int32_t token = (int32_t)tails[line * width + k];
      int32_t edge;
      while ((edge = edge_of(a, state, token)) == NO_EDGE && state > 0) state = a->link[state], run = a->length[state];
      if (edge != NO_EDGE) state = a->edge_to[edge], run++;
    }
    matched[line] = run;
    double share = 1;
    int64_t count = 0;
    while (run > 0 && count < most && a->best[state] >= 0) {
      const int32_t next = a->edge_to[edge_of(a, state, a->best[state])];
      share *= (double)a->count[next] / a->count[state];
      if (share < least_share) break;
      drafted[line * most + count++] = a->best[state];
      state = next;
    }
    num[line] = count;
  }
}
