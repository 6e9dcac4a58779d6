//! Measuring on a GPU.
//!
//! - [`floor`], [`subject`], [`aims`], [`quoted`]: what is measured and what it is held against; pure.
//! - [`lab`]: the device, its memory and streams: the only file here that asks anything of a driver.
//! - [`collectives`], [`layouts`]: what one rank of a collective between GPUs does; `queued`: what they share;
//! - [`survivor`]: what one rank of `deaths` does;
//! - [`copied`]: copies by the driver alone, for comparison; [`paged`]: puts into pages;
//! - [`timing`]: device time; [`proof`]: that the bytes are right; [`session`]: rows of a report; [`places`]: memory
//!   that rotates.
//!
//! A machine without a CUDA device gets [`Failure::NoGpu`](crate::Failure::NoGpu), in one line.

pub mod aims;
#[allow(unsafe_code, reason = "queues collectives on memory that it owns")]
pub mod collectives;
#[allow(unsafe_code, reason = "copies between memory that it borrows")]
pub mod copied;
pub mod floor;
#[allow(unsafe_code, reason = "enqueues work on memory that it owns")]
pub mod lab;
#[allow(unsafe_code, reason = "queues collectives on memory that it owns")]
pub mod layouts;
#[allow(unsafe_code, reason = "names indices in memory that it borrows")]
pub mod paged;
pub mod places;
#[allow(unsafe_code, reason = "lets threads pack parts of memory that it borrows")]
pub mod proof;
mod queued;
pub mod quoted;
pub mod session;
pub mod subject;
#[allow(unsafe_code, reason = "queues collectives on memory that it owns")]
pub mod survivor;
pub mod timing;

use std::fs;

use gapless_mem::Device;
use gapless_mem_cuda::{CudaDriver, Mps};
use gapless_report::{Gpu, Row, Time};

use crate::error::Failure;
use crate::p2p::mps::Service;
use crate::processes::Variable;
use crate::table::{
    CASE, Column, OP, OVER_CONTIGUOUS, OVER_FLOOR, OVER_MEMCPY, PAYLOAD, PROTOCOL, QUOTED, RATE,
    SPREAD, TIME, called, or_none, table,
};

/// Rows of the GPU engine.
pub(crate) fn rows_table<'r>(rows: impl IntoIterator<Item = &'r Row>) -> String {
    let others: Column = ("÷ other", |row| {
        let known = ["memcpy", "contiguous", "floor"];
        let others = row.others.iter().map(|other| (other.reference.as_str(), other.ratio));
        let all = row.reference.as_deref().zip(row.ratio).into_iter().chain(others);
        let all = all.filter(|(name, _)| !known.contains(name));
        or_none(all.map(|(name, ratio)| format!("{name} {ratio:.2}")))
    });
    let call: Column = ("call", |row| {
        let call = row.extra.get("call_seconds").and_then(|it| it.as_f64());
        call.map_or("-".to_owned(), |call| Time(call).to_string())
    });
    let mark: Column =
        ("mark", |row| row.met().map_or("-", |met| if met { "met" } else { "missed" }).to_owned());
    let columns = [
        called("work", CASE),
        OP,
        PAYLOAD,
        called("kernel", PROTOCOL),
        called("device time", TIME),
        SPREAD,
        RATE,
        OVER_MEMCPY,
        OVER_CONTIGUOUS,
        OVER_FLOOR,
        others,
        call,
        QUOTED,
        mark,
    ];
    table(&columns, rows)
}

/// The CUDA devices of this machine, for reports; none where there is no driver.
#[must_use]
pub fn describe() -> Vec<Gpu> {
    let Ok(driver) = CudaDriver::load() else { return Vec::new() };
    let (major, minor) = driver.version();
    let release =
        fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| release(&text));
    let release = release.map_or(String::new(), |release| format!("driver {release}, "));
    let open = |ordinal| {
        let device = driver.device(ordinal).ok()?;
        let properties = device.properties();
        let mps = if device.mps() == Mps::Off { "" } else { ", MPS" };
        Some(Gpu {
            space: device.space().to_string(),
            name: properties.name.clone(),
            driver: format!("{release}CUDA {major}.{minor}{mps}"),
            memory_bytes: Some(properties.memory_bytes),
        })
    };
    (0..driver.devices()).filter_map(open).collect()
}

/// Options of experiments whose processes are spread over GPUs, or share them.
#[derive(Clone, Debug, clap::Args)]
pub struct GpusOfRanks {
    /// GPUs of the processes, in turn; by default all that there are
    #[arg(long, value_name = "ORDINALS", value_delimiter = ',', num_args = 1..)]
    gpus: Vec<u32>,
    /// Start a Multi-Process Service of our own where processes share GPUs and none runs; without one they take turns
    #[arg(long)]
    start_mps: bool,
}

impl GpusOfRanks {
    /// What the processes' environment has besides, and what must live as long as they do.
    pub(crate) fn check(&self, ranks: u32) -> Result<(Vec<Variable>, Option<Service>), Failure> {
        let no_gpu = |why: String| Failure::NoGpu { why };
        let devices = CudaDriver::load().map_err(|why| no_gpu(why.to_string()))?.devices();
        if devices == 0 || self.gpus.iter().any(|gpu| *gpu >= devices) {
            return Err(no_gpu(format!("{devices} devices; these are asked for: {:?}", self.gpus)));
        }
        let mut used: Vec<u32> = (0..ranks).map(|rank| self.of(rank, devices)).collect();
        used.sort_unstable();
        used.dedup();
        let shared = used.len() < ranks as usize;
        let service = match shared.then(|| Service::find(self.start_mps)).transpose() {
            Err(why) if self.start_mps => return Err(no_gpu(why)),
            found => found.ok().flatten(),
        };
        Ok((service.as_ref().map(Service::environment).unwrap_or_default(), service))
    }

    /// A rank's GPU, where there are so many.
    pub(crate) fn of(&self, rank: u32, devices: u32) -> u32 {
        match &self.gpus[..] {
            [] => rank % devices.max(1),
            some => some[rank as usize % some.len()],
        }
    }

    /// Where all are.
    pub(crate) fn space(&self, ranks: u32, devices: u32) -> String {
        let all: Vec<String> = (0..ranks).map(|rank| self.of(rank, devices).to_string()).collect();
        format!("cuda {}", all.join(", "))
    }
}

/// Where ranks are: each on a device of its own, or in turn on those that there are.
#[must_use]
pub(crate) fn space(ranks: u32) -> String {
    let devices = CudaDriver::load().map_or(ranks, |driver| driver.devices()).max(1);
    (0..ranks).map(|rank| format!("cuda:{}", rank % devices)).collect::<Vec<_>>().join(",")
}

/// What cases say of that.
#[must_use]
pub(crate) fn sharing(ranks: u32) -> String {
    let devices = CudaDriver::load().map_or(ranks, |driver| driver.devices());
    match devices {
        1 => format!("{ranks} ranks on one GPU"),
        few if few < ranks => format!("{ranks} ranks on {few} GPUs"),
        _ => format!("{ranks} ranks"),
    }
}

/// The OpenCL devices of this machine, the host's processor among them.
#[must_use]
pub fn describe_opencl() -> Vec<Gpu> {
    let found = gapless_mem_opencl::detect().unwrap_or_default().into_iter();
    let one = |device: gapless_mem_opencl::DeviceInfo| Gpu {
        space: format!("opencl:{}", device.ordinal),
        name: device.name,
        driver: device.platform,
        memory_bytes: Some(device.memory_bytes),
    };
    found.map(one).collect()
}

/// The driver's release, from the kernel module's file.
fn release(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let number =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_ascii_whitespace().find(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn the_release_is_the_number_with_dots() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n\
                    GCC version:  gcc version 12.2.0\n";
        assert_eq!(release(text).as_deref(), Some("580.95.05"));
        assert_eq!(release("nothing"), None);
    }
}
