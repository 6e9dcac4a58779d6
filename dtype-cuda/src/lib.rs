//! The GPU datatype engine.
#![deny(unsafe_code)]

#[allow(dead_code, reason = "the engine is being put together")]
mod cache;
#[allow(dead_code, reason = "the engine is being put together")]
mod form;
#[allow(dead_code, reason = "the engine is being put together")]
mod plan;

pub use cache::PlanStatistics;
