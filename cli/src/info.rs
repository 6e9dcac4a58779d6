//! `gapless info`: what this machine and this build can do.
//!
//! Whether one process can read another's memory is not asked of the configuration but tried: two
//! processes of this program meet and say what their link allows. OpenCL is asked in a process of its own, too.

use super::failure::Failure;
use super::lines::tell;
use super::run::start_quietly;
use super::{Worlds, say, spaces};
use gapless::Link;
use gapless::coll::Level;
use gapless::launch::Job;
use gapless::network::{self, Listening, VerbsPort};
use gapless::processors::Processors;
use gapless::tuning::{self, Location};
use gapless_btl::{Btl, Limits};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_report::{Bytes, Machine};
use std::fmt::Write;
use std::process::ExitCode;

/// What is said of a way between two processes that works; `doctor` looks for it.
pub(super) const WORKS: &str = "works between processes here";

/// No options but the hidden ones.
#[derive(Debug, clap::Args)]
pub(super) struct Info {
    /// This is one of the two processes that try the link
    #[arg(long, hide = true)]
    as_rank: bool,
    /// This is the process that finds out about OpenCL
    #[arg(long, hide = true)]
    probe_opencl: bool,
}

impl Info {
    pub(super) fn run(self, worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
        if self.as_rank {
            return try_link(worlds);
        }
        if self.probe_opencl {
            let (there, text) = spaces::probe();
            say(&text)?;
            return Ok(if there { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        tell(&here()?)?;
        let job = Job {
            ranks: 2,
            program: std::env::current_exe().map_err(Failure::NoProgram)?.into(),
            arguments: vec!["info".into(), "--as-rank".into()],
            environment: Vec::new(),
            prefix: false,
        };
        start_quietly(&job)
    }
}

/// What can be said without a peer.
fn here() -> Result<String, Failure> {
    let machine = Machine::describe();
    let mut text = String::new();
    let mut line = |title: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{title:<14} {value}");
    };
    line("gapless", &format!("{} ({})", env!("CARGO_PKG_VERSION"), features()));
    line("machine", &machine.one_line());
    if let Some(container) = &machine.container {
        line("container", &container.hint);
    }
    line("levels", &levels(&Processors::here(), &Processors::allowed()));
    line("huge pages", &format!("transparent: {}", machine.transparent_hugepages));
    line("space host", "available");
    for (title, devices) in
        [("space cuda", spaces::cuda()), ("space opencl", spaces::opencl_elsewhere())]
    {
        match devices {
            Ok(devices) => {
                line(title, &devices.summary);
                devices.each.iter().for_each(|(name, text)| line(&format!("  {name}"), text));
            }
            Err(why) => line(title, &format!("not available: {why}")),
        }
    }
    if let Some(text) = spaces::kernels() {
        line("kernels", &text);
    }
    line("tuning", &tuning());
    line("collectives", &collectives());
    let config = SmConfig::new(format!("info-{}", std::process::id()), "info");
    match Sm::new(config) {
        Ok(sm) => line("transport sm", &transport(sm.limits())),
        Err(error) => line("transport sm", &format!("not available: {error}")),
    }
    let listening = network::listening();
    let encrypts = listening.as_ref().is_ok_and(|listening| listening.encrypts);
    match listening {
        Ok(listening) => line("transport tcp", &tcp(&listening)),
        Err(error) => line("transport tcp", &format!("not available: {error}")),
    }
    match network::verbs_ports() {
        Ok(ports) => {
            line("transport ib", &verbs(&ports, encrypts));
            for port in &ports {
                line(&format!("  {port}"), &port_line(port));
            }
        }
        Err(error) => line("transport ib", &format!("not available: {error}")),
    }
    Ok(text)
}

/// Where a process of this host listens if a job has several hosts.
fn tcp(listening: &Listening) -> String {
    let Listening { addresses, rails, ports, encrypts, is_loopback } = listening;
    let each: Vec<_> =
        addresses.iter().map(|(name, address)| format!("{name} {address}")).collect();
    let rails = if *rails > 1 { format!("{rails} rails used together: ") } else { String::new() };
    let ports = match ports {
        Some(ports) => format!("ports {} to {}", ports.start(), ports.end()),
        None => "any port".to_owned(),
    };
    let to = if *is_loopback { "to no other host, only loopback" } else { "to other hosts" };
    let sealed = if *encrypts { "encrypted" } else { "not encrypted" };
    format!("{to}: {rails}{}; {ports}; {sealed}", each.join(", "))
}

/// Which ports of adapters a process uses if a job has several hosts.
fn verbs(ports: &[VerbsPort], encrypts: bool) -> String {
    let used = ports.iter().filter(|port| port.passed_over.is_none());
    let used: Vec<String> = used.map(ToString::to_string).collect();
    match &used[..] {
        [] if ports.is_empty() => "not available: this host has no verbs device".to_owned(),
        [] => "not available: no port can be used".to_owned(),
        _ if encrypts => "not used: encryption is on".to_owned(),
        [port] => format!("to other hosts that have it, too: {port}"),
        several => {
            let several = several.join(", ");
            format!(
                "to other hosts that have it, too: {several}; all of them where both ends name several, else one"
            )
        }
    }
}

/// What a port is, and why it is not used.
fn port_line(port: &VerbsPort) -> String {
    let mut text = port.description.clone();
    if port.addresses.len() > 1 {
        text += &format!(" of {}", port.addresses.join(", "));
    }
    if let Some(why) = &port.passed_over {
        text += &format!("; not used: {why}");
    }
    text
}

/// How the processors that this process may use are grouped, and which groups they are all in: collectives on levels
/// need ranks that are kept on one.
fn levels(system: &Processors, allowed: &[usize]) -> String {
    let (mut there, mut kept) = (Vec::new(), Vec::new());
    for level in Level::INSIDE {
        let name = level.title();
        let groups = system.groups(level, allowed);
        match &groups[..] {
            [] => there.push(format!("{name} unknown")),
            [group] => kept.push(format!("{name} {}", group.number)),
            several => {
                let mut sizes: Vec<_> = several.iter().map(|it| it.processors.len()).collect();
                sizes.sort_unstable();
                sizes.dedup();
                let of = match &sizes[..] {
                    [size] => spaces::counted(*size as u64, "processor"),
                    sizes => {
                        let words: Vec<_> = sizes.iter().map(usize::to_string).collect();
                        format!("{} processors", words.join(" or "))
                    }
                };
                there.push(format!("{} of {of}", spaces::counted(several.len() as u64, name)));
            }
        }
    }
    if !kept.is_empty() {
        there.push(format!("this process is kept on {}", kept.join(", ")));
    }
    there.join("; ")
}

/// Which numbers a world takes.
fn tuning() -> String {
    let location = Location::of_environment();
    match (location.read(), location.path()) {
        (Ok(Some(_)), Some(path)) => path.display().to_string(),
        (Ok(_), Some(path)) => {
            format!("defaults; `gapless tune` would write {}", path.display())
        }
        (Ok(_), None) => format!("defaults; {} says so", tuning::VARIABLE),
        (Err(error), _) => error.to_string(),
    }
}

/// Which rules choose the algorithms of collectives.
fn collectives() -> String {
    let location = tuning::coll::location();
    match (tuning::coll::load(), location.path()) {
        (Ok(rules), Some(path)) if path.exists() => {
            format!("{} of {}", spaces::counted(rules.len() as u64, "rule"), path.display())
        }
        (Ok(_), Some(path)) => format!("built-in rules; others would be in {}", path.display()),
        (Ok(_), None) => format!("built-in rules; {} says so", tuning::coll::VARIABLE),
        (Err(error), _) => error.to_string(),
    }
}

fn features() -> String {
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    let mut features = Vec::new();
    features.extend(cfg!(feature = "cuda").then_some("cuda"));
    features.extend(cfg!(feature = "opencl").then_some("opencl"));
    features.extend(cfg!(feature = "encryption").then_some("encryption"));
    features.extend(cfg!(feature = "ib").then_some("ib"));
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    format!("{build}, {}, features {features}", std::env::consts::ARCH)
}

fn transport(limits: &Limits) -> String {
    format!(
        "{} ns, {} MB/s, eager up to {}, fragments up to {}, {}, a death is noticed within {} ms",
        limits.latency_ns,
        limits.bandwidth_mb_s,
        Bytes(limits.eager_bytes as u64),
        Bytes(limits.max_fragment_bytes as u64),
        if limits.ordered { "ordered" } else { "unordered" },
        limits.death_notice_ms,
    )
}

/// What two processes find out about their link; rank 0 says it.
fn try_link(worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
    let world = worlds.builder()?.init()?;
    let peer = 1 - world.rank().min(1);
    // A message in each direction: after it the link is up, and has been probed.
    let comm = world.comm();
    let mut word = [0u8];
    comm.scope(|s| {
        let _ = s.irecv(&mut word, peer, 0)?;
        let _ = s.isend(&[1u8], peer, 0)?;
        Ok(())
    })?;
    let Link { limits, single_copy, mapped, .. } = world.link(peer)?;
    let shared = world.alloc(1 << 20)?.is_mappable();
    if world.rank() == 0 {
        let built_in = limits.as_ref().is_none_or(|limits| limits.name == "sm");
        if let Some(limits) = limits.filter(|_| !built_in) {
            say(&format!("{:<14} {}\n", format!("transport {}", limits.name), transport(&limits)))?;
        }
        let yes = |there: bool| if there { WORKS } else { "not available" };
        let single_copy = match single_copy {
            true => yes(true).to_owned(),
            false if !built_in => yes(false).to_owned(),
            false => format!("{}: the system forbids process_vm_readv", yes(false)),
        };
        say(&format!("single copy    {single_copy}\nshared memory  {}\n", yes(mapped && shared)))?;
        let threads = match world.copy_threads() {
            0 => "none: two processes have no processors to spare".to_owned(),
            threads => {
                format!("{threads} in each of two processes, for long copies to and from devices")
            }
        };
        say(&format!("copy threads   {threads}\n"))?;
    }
    world.finalize()?;
    Ok(ExitCode::SUCCESS)
}
