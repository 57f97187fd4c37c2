"""Makes `commit_rig` importable, and input folders."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
