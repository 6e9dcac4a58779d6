//! Gapless: non-contiguous messages between processes, wherever the data lies.
