//! Collectives and the topologies that they run on. So far: [`topologies`].
#![forbid(unsafe_code)]

pub mod topologies;
