//! The layouts real applications send, as committed datatypes.
