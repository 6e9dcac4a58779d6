//! The GPU datatype engine.
#![deny(unsafe_code)]
