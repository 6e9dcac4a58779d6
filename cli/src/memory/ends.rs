//! Where the messages of each process lie: the host's memory, or a device's.
//!
//! ```text
//! host        both in host memory          cuda:1         both in the memory of GPU 1
//! cuda        both in that of GPU 0        cuda:0,cuda:1  rank 0's on one GPU, rank 1's on another
//! opencl:2    both in that of a device     cuda,host      rank 0's on a GPU, rank 1's in host memory
//! ```

use gapless_mem::Abilities;
use std::fmt;
use std::str::FromStr;

/// Where one process's messages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Where {
    /// Host memory.
    Host,
    /// The memory of the CUDA device with this ordinal.
    Cuda(u32),
    /// The memory of the OpenCL device with this number, as `gapless info` lists them.
    OpenCl(u32),
}

impl Where {
    /// Whether it is a device's memory.
    #[must_use]
    pub fn is_device(self) -> bool {
        self != Where::Host
    }

    /// What devices of its kind can do, without opening one; nothing of the host.
    pub(crate) fn abilities(self) -> Abilities {
        match self {
            #[cfg(feature = "cuda")]
            Where::Cuda(_) => gapless_mem_cuda::CudaDevice::ABILITIES,
            // The same, where the driver's crate is not in the build.
            #[cfg(not(feature = "cuda"))]
            Where::Cuda(_) => {
                Abilities { shares: std::num::NonZeroU8::new(1), kernels_reach_host: true }
            }
            #[cfg(feature = "opencl")]
            Where::OpenCl(_) => gapless_mem_opencl::OpenClDevice::ABILITIES,
            #[cfg(not(feature = "opencl"))]
            Where::OpenCl(_) => Abilities::default(),
            Where::Host => Abilities::default(),
        }
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Where::Host => f.pad("host"),
            Where::Cuda(ordinal) => f.pad(&format!("cuda:{ordinal}")),
            Where::OpenCl(number) => f.pad(&format!("opencl:{number}")),
        }
    }
}

impl FromStr for Where {
    type Err = String;

    fn from_str(text: &str) -> Result<Where, String> {
        let (kind, number) = match text.split_once(':') {
            Some((kind, number)) => (kind, number.parse().ok()),
            None => (text, Some(0)),
        };
        match (kind, number) {
            ("host", Some(0)) if text == "host" => Ok(Where::Host),
            ("cuda", Some(ordinal)) => Ok(Where::Cuda(ordinal)),
            ("opencl", Some(number)) => Ok(Where::OpenCl(number)),
            ("cuda" | "opencl", None) => {
                Err(format!("the number of a device stands after the colon, as in {kind}:0"))
            }
            _ => Err("a space is host, cuda[:N] or opencl[:N]".to_owned()),
        }
    }
}

/// Where the messages of rank 0 and of rank 1 lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ends(pub [Where; 2]);

impl Ends {
    /// Both in host memory.
    pub const HOST: Ends = Ends([Where::Host, Where::Host]);

    /// Where those of a rank lie; ranks above 1 have none.
    #[must_use]
    pub fn of(self, rank: u32) -> Where {
        self.0[usize::from(rank != 0)]
    }

    /// Whether any of them lie in a device's memory.
    #[must_use]
    pub fn involve_device(self) -> bool {
        self.0.iter().any(|place| place.is_device())
    }
}

impl fmt::Display for Ends {
    /// As rows of reports have it: one name if both are the same, else `cuda:0->cuda:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends([first, second]) = self;
        if first == second { first.fmt(f) } else { f.pad(&format!("{first}->{second}")) }
    }
}

impl FromStr for Ends {
    type Err = String;

    fn from_str(text: &str) -> Result<Ends, String> {
        match text.split_once(',') {
            Some((first, second)) => Ok(Ends([first.parse()?, second.parse()?])),
            None => text.parse().map(|both| Ends([both; 2])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, ends, shown) in [
            ("host", Ends::HOST, "host"),
            ("cuda", Ends([Where::Cuda(0); 2]), "cuda:0"),
            ("cuda:3", Ends([Where::Cuda(3); 2]), "cuda:3"),
            ("cuda,cuda:1", Ends([Where::Cuda(0), Where::Cuda(1)]), "cuda:0->cuda:1"),
            ("host,opencl:2", Ends([Where::Host, Where::OpenCl(2)]), "host->opencl:2"),
        ] {
            assert_eq!(text.parse(), Ok(ends), "{text}");
            assert_eq!(ends.to_string(), shown);
            assert_eq!(ends.involve_device(), text != "host");
        }
        for text in [
            "",
            "moon",
            "host:1",
            "host:0",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda,",
            "cuda,host,host",
        ] {
            assert!(text.parse::<Ends>().is_err(), "{text}");
        }
        assert_eq!(Ends([Where::Host, Where::Cuda(1)]).of(1), Where::Cuda(1));
    }
}
