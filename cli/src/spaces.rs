//! Which memory there is to send from, and why other memory is not there. Drivers are opened only
//! when a command asks for their memory, or `info` for everything.

use super::failure::Failure;
use super::pingpong::Where;
use std::process::{Command, ExitStatus, Stdio};

/// What there is of one kind of devices: a line on all of them, and one on each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Devices {
    pub(super) summary: String,
    pub(super) each: Vec<(String, String)>,
}

/// The name of a device, and whether a worker of tasks could be started there, or why not.
pub(super) type Start = (String, Result<(), String>);

/// Whether there is this place to send from; opens no device.
pub(super) fn present(place: Where) -> Result<(), Failure> {
    let found = match place {
        Where::Host => return Ok(()),
        Where::Cuda(ordinal) => cuda_devices().map(|there| (ordinal, there)),
        Where::OpenCl(number) => opencl_devices().map(|there| (number, there)),
    };
    let why = match found {
        Ok((number, there)) if number < there => return Ok(()),
        Ok((_, there)) => {
            format!("this machine has {} of that kind", counted(there.into(), "device"))
        }
        Err(why) => why,
    };
    Err(Failure::NoSpace { space: place.to_string(), why })
}

fn cuda_devices() -> Result<u32, String> {
    #[cfg(feature = "cuda")]
    return gapless_mem_cuda::CudaDriver::load()
        .map(|driver| driver.devices())
        .map_err(|error| error.to_string());
    #[cfg(not(feature = "cuda"))]
    cuda().map(|_| 0)
}

fn opencl_devices() -> Result<u32, String> {
    opencl().map(|devices| u32::try_from(devices.each.len()).unwrap_or(u32::MAX))
}

/// The CUDA devices, or why there are none.
#[cfg(feature = "cuda")]
pub(super) fn cuda() -> Result<Devices, String> {
    use gapless_mem::Device;
    use gapless_mem_cuda::{CudaDriver, Mps};
    use gapless_report::Bytes;
    let driver = CudaDriver::load().map_err(|error| error.to_string())?;
    let (major, minor) = driver.version();
    let count = driver.devices();
    let one = |ordinal: u32| {
        let device = match driver.device(ordinal) {
            Ok(device) => device,
            Err(error) => return error.to_string(),
        };
        let properties = device.properties();
        let (major, minor) = device.capability();
        let mps = match device.mps() {
            Mps::On => "on",
            Mps::Off => "off",
            Mps::Likely => "probably on",
        };
        let others = (0..count).filter(|other| *other != ordinal);
        let reached: Vec<String> = others
            .filter(|other| device.can_access(*other) == Ok(true))
            .map(|other| other.to_string())
            .collect();
        let peers = match (count, reached.is_empty()) {
            (1, _) => String::new(),
            (_, true) => ", reaches no other device".to_owned(),
            (_, false) => format!(", reaches {} directly", reached.join(" ")),
        };
        format!(
            "{}, sm_{major}{minor}, {} SMs, {}, L2 {}, MPS {mps}{peers}{}",
            properties.name,
            properties.compute_units,
            Bytes(properties.memory_bytes),
            Bytes(properties.cache_bytes),
            reserved(gapless_dtype_cuda::reserved(device.uuid())),
        )
    };
    Ok(Devices {
        summary: format!("CUDA {major}.{minor}, {}", counted(count.into(), "device")),
        each: (0..count).map(|ordinal| (format!("cuda:{ordinal}"), one(ordinal))).collect(),
    })
}

/// Whether a worker of tasks could be started on each CUDA device now, by making one of so many blocks that is not started.
#[cfg(feature = "cuda")]
pub(super) fn workers(blocks: u32) -> Result<Vec<Start>, String> {
    let driver = gapless_mem_cuda::CudaDriver::load().map_err(|error| error.to_string())?;
    let one = |ordinal: u32| -> Result<(), String> {
        let device = driver.device(ordinal).map_err(|error| error.to_string())?;
        let made = gapless_dtype_cuda::CudaWorker::with_blocks(device.into(), blocks);
        made.map(drop).map_err(|error| error.to_string())
    };
    Ok((0..driver.devices()).map(|ordinal| (format!("cuda:{ordinal}"), one(ordinal))).collect())
}

/// Whether a worker of tasks could be started on each CUDA device now.
#[cfg(not(feature = "cuda"))]
pub(super) fn workers(_: u32) -> Result<Vec<Start>, String> {
    cuda().map(|_| Vec::new())
}

/// Who has reserved thread blocks of a device for kernels that wait or stay; nothing, if nobody has.
#[cfg(feature = "cuda")]
fn reserved(
    holdings: Result<Vec<gapless_dtype_cuda::Holding>, gapless_dtype_cuda::LedgerError>,
) -> String {
    let holdings = match holdings {
        Ok(holdings) => holdings,
        Err(error) => return format!(", reserved: {error}"),
    };
    match gapless_dtype_cuda::ledger_folder() {
        Some(_) => named(&holdings),
        None => ", reserved: not known, each process counts alone".to_owned(),
    }
}

#[cfg(feature = "cuda")]
fn named(holdings: &[gapless_dtype_cuda::Holding]) -> String {
    let of = |holding: &gapless_dtype_cuda::Holding| {
        let claims = holding.claims.iter().map(|claim| {
            let blocks = counted(claim.blocks.into(), "block");
            format!("{blocks} ({}, of {})", claim.holder, claim.room)
        });
        format!("{} by process {}", claims.collect::<Vec<_>>().join(" and "), holding.process)
    };
    match holdings.is_empty() {
        true => String::new(),
        false => format!(", reserved: {}", holdings.iter().map(of).collect::<Vec<_>>().join(", ")),
    }
}

/// The CUDA devices, or why there are none.
#[cfg(not(feature = "cuda"))]
pub(super) fn cuda() -> Result<Devices, String> {
    Err("this build has no CUDA engine (feature cuda)".to_owned())
}

/// The OpenCL devices, or why there are none.
#[cfg(feature = "opencl")]
pub(super) fn opencl() -> Result<Devices, String> {
    use gapless_report::Bytes;
    let found = gapless_mem_opencl::detect().map_err(|error| error.to_string())?;
    let each = found.iter().map(|device| {
        let kind = match (device.gpu, device.cpu) {
            (true, _) => "GPU",
            (_, true) => "the host's processor",
            _ => "accelerator",
        };
        let text = format!(
            "{} ({}), {kind}, {}, {}",
            device.name,
            device.platform,
            counted(device.compute_units.into(), "compute unit"),
            Bytes(device.memory_bytes),
        );
        (format!("opencl:{}", device.ordinal), text)
    });
    Ok(Devices { summary: counted(found.len() as u64, "device"), each: each.collect() })
}

/// The OpenCL devices, or why there are none.
#[cfg(not(feature = "opencl"))]
pub(super) fn opencl() -> Result<Devices, String> {
    Err("this build has no OpenCL engine (feature opencl)".to_owned())
}

/// The option with which this program writes [`opencl`] in the form that [`opencl_elsewhere`] reads.
pub(super) const PROBE: &str = "--probe-opencl";

/// The names of the lines on all of them, and on why there are none.
const ALL: &str = "all";
const WHY: &str = "why";

/// What [`opencl`] gives, in lines: a name, a tab, a text. Drivers may write lines of their own between them.
pub(super) fn probe() -> (bool, String) {
    let line =
        |(name, text): (&str, &str)| format!("\n{name}\t{}\n", text.replace(char::is_control, " "));
    match opencl() {
        Ok(Devices { summary, each }) => {
            let each = each.iter().map(|(name, text)| (name.as_str(), text.as_str()));
            (true, [(ALL, summary.as_str())].into_iter().chain(each).map(line).collect())
        }
        Err(why) => (false, line((WHY, &why))),
    }
}

/// As [`opencl`], found out by a process of its own: a driver that cannot cope with the machine may end whoever opens
/// it (PoCL does without `/sys`).
pub(super) fn opencl_elsewhere() -> Result<Devices, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    let output = command.args(["info", PROBE]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot ask: {error}"))?;
    read_probe(output.status, &output.stdout, &output.stderr)
}

/// Reads what a process said that was started with [`PROBE`], and how it ended.
fn read_probe(status: ExitStatus, said: &[u8], complained: &[u8]) -> Result<Devices, String> {
    let said = String::from_utf8_lossy(said);
    let lines = said.lines().filter_map(|line| line.split_once('\t'));
    let find = |wanted| lines.clone().find(|(name, _)| *name == wanted).map(|(_, text)| text);
    match (status.code(), find(ALL), find(WHY)) {
        (Some(0), Some(summary), None) => {
            let each = lines.filter(|(name, _)| name.starts_with("opencl:"));
            let each = each.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
            Ok(Devices { summary: summary.to_owned(), each })
        }
        (Some(1), None, Some(why)) => Err(why.to_owned()),
        _ => {
            let complained = String::from_utf8_lossy(complained);
            let last = complained.lines().map(str::trim).rfind(|line| !line.is_empty());
            let last = last.map_or(String::new(), |line| format!(", saying {line:?}"));
            Err(format!("a driver ended the process that opened it ({status}){last}"))
        }
    }
}

/// What the kernels were built for.
pub(super) fn kernels() -> Option<String> {
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    {
        use std::collections::BTreeSet;
        // A heading, then lines that begin with the architecture and the kernel's name.
        let words = || {
            let lines = gapless_kernels::REGISTERS.lines().skip(1);
            lines.filter_map(|line| line.split_once(' '))
        };
        let built: BTreeSet<u32> = words().filter_map(|(sm, _)| sm.parse().ok()).collect();
        let built: Vec<String> = built.into_iter().map(|sm| format!("sm_{sm}")).collect();
        let names: BTreeSet<&str> =
            words().filter_map(|(_, rest)| rest.split(' ').next()).collect();
        Some(format!(
            "{} for {} and PTX for later ones, {}; OpenCL C is compiled where it runs",
            counted(names.len() as u64, "kernel"),
            built.join(", "),
            gapless_report::Bytes(gapless_kernels::IMAGE.len() as u64),
        ))
    }
    #[cfg(not(any(feature = "cuda", feature = "opencl")))]
    None
}

/// So many of something, in words that are right for one and for several.
pub(super) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("one {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        assert!(present(Where::Host).is_ok());
        for place in [Where::Cuda(1_000_000), Where::OpenCl(999)] {
            let text = present(place).unwrap_err().to_string();
            assert!(text.starts_with(&format!("space {place} is not available: ")), "{text}");
            assert!(!text.contains('\n'));
        }
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn who_has_reserved_blocks_is_named() {
        use gapless_dtype_cuda::{Claim, Holder, Holding, LedgerError};
        let claim =
            |holder, blocks, room| Claim { holder, blocks, room, together: true, handed: 0 };
        let one = vec![claim(Holder::Stream, 64, 132), claim(Holder::Worker, 1, 2112)];
        let all = vec![
            Holding { process: 7, claims: one },
            Holding { process: 8, claims: vec![claim(Holder::Stream, 8, 132)] },
        ];
        assert_eq!(
            named(&all),
            ", reserved: 64 blocks (stream, of 132) and one block (worker, of 2112) by process 7, \
             8 blocks (stream, of 132) by process 8"
        );
        assert_eq!(named(&[]), "");
        let busy = LedgerError::Busy { folder: "/somewhere".to_owned() };
        assert!(reserved(Err(busy)).contains("/somewhere"));
    }

    #[test]
    fn what_another_process_found_is_read() {
        use std::os::unix::process::ExitStatusExt as _;
        let read = |status, said: &str, complained: &str| {
            read_probe(ExitStatus::from_raw(status), said.as_bytes(), complained.as_bytes())
        };
        let found =
            read(0, "all\t2 devices\nI am 7\nopencl:0\tone\nopencl:1\tother\n", "a warning\n")
                .unwrap();
        assert_eq!(found.summary, "2 devices");
        let each = [("opencl:0", "one"), ("opencl:1", "other")];
        assert_eq!(found.each, each.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert_eq!(
            read(1 << 8, "why\tthere is no library\n", ""),
            Err("there is no library".to_owned())
        );
        let aborted = read(6, "", "a warning\nAssertion failed\n\n").unwrap_err();
        assert!(
            aborted.contains("signal: 6") && aborted.ends_with("\"Assertion failed\""),
            "{aborted}"
        );
        assert!(read(0, "", "").is_err() && read(2 << 8, "", "").is_err());
    }

    #[test]
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    fn the_kernels_say_what_they_were_built_for() {
        let text = kernels().unwrap();
        assert!(text.contains("sm_80, sm_90, sm_100"), "{text}");
    }
}
