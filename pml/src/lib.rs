//! Point-to-point messaging: communicators, matching, protocols and progress.
