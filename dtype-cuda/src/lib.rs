//! The GPU datatype engine.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "declares what launches and copies need")]
mod accelerator;

#[allow(unsafe_code, reason = "launches kernels by address")]
mod batch;
mod cache;
mod config;
#[cfg(feature = "cuda")]
mod cuda;
#[allow(unsafe_code, reason = "implements Engine's unsafe methods")]
mod engine;
mod form;
mod lanes;
#[allow(unsafe_code, reason = "frees device memory")]
mod memory;
#[cfg(feature = "opencl")]
mod opencl;
mod plan;
mod plans;
#[allow(unsafe_code, reason = "copies plans to the device")]
mod prepare;
mod report;
#[allow(unsafe_code, reason = "launches kernels by address")]
mod shared;
#[allow(unsafe_code, reason = "launches kernels and copies by address")]
mod staged;
mod staging;

pub use batch::Request;
pub use cache::PlanStatistics;
pub use config::{Config, Launched};
#[cfg(feature = "cuda")]
pub use cuda::OnStream;
pub use engine::GpuEngine;
