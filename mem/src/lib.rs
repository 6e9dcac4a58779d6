//! Where bytes lie: spaces, regions, devices and completions.
