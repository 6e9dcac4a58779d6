//! `gapless explain`: the candidates for a message between two processes of this host, their
//! predicted times, and the winner. Nothing is opened or measured: the numbers are those of the tuning
//! file or the defaults, so messages between devices are explained where there are none.
//!
//! With `--coll`, the algorithms for a collective (`coll.rs`).

mod coll;

use super::Worlds;
use super::failure::Failure;
use super::lines::tell;
use super::pingpong::{Ends, Where};
use super::selection::{Selection, contiguous, repeated};
use super::spaces::counted;
use gapless::tuning::Location;
use gapless_bml::predicted_ns;
use gapless_btl::{Btl, Limits};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_dtype::Convertor;
use gapless_layouts::Case;
use gapless_pml::choose::{DeviceEnds, SingleCopyCosts, Staging, Touched, candidates};
use gapless_pml::{Config, EAGER_BYTES, INLINE_LAYOUT_MAX, Situation, Tuning};
use gapless_report::{Align, Bytes, Table, Time, terminal_columns};
use std::process::ExitCode;

/// The message by which bml compares transports.
const RAIL_BYTES: u64 = 8 << 10;

/// Which message to explain, or which collective.
#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    collective: coll::Collective,
    /// A message of this many contiguous bytes, or layouts repeated up to about this many: 64,
    /// 16K, 8M, 1G. Of a collective: its vector, or one rank's block
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    size: Option<u64>,
    /// The memory of the sender, and after a comma that of the receiver, if it is another: host, cuda:0,
    /// opencl:0
    #[arg(long, value_name = "PLACE[,PLACE]", default_value = "host")]
    space: Ends,
    /// Peers can map the memory: it comes from World::alloc, or from a device whose memory is shared; or
    /// it comes from anywhere; or the host's is a user's, page-locked for a device of its process
    #[arg(long, value_enum, default_value = "alloc")]
    memory: ExplainMemory,
    /// Also show the protocols that are impossible for the message, and why
    #[arg(long)]
    all: bool,
    /// No MPS server: processes take turns on a device that both use
    #[arg(long)]
    turns: bool,
    /// Say whether a worker of tasks could be started on each GPU now, of so many thread blocks (1), and why not: one is
    /// made, and not started, so its blocks are reserved for a moment
    #[arg(long, value_name = "BLOCKS", num_args = 0..=1, default_missing_value = "1")]
    worker: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExplainMemory {
    Alloc,
    Heap,
    Locked,
}

impl Explain {
    pub(super) fn run(self, worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
        if let Some(blocks) = self.worker {
            tell(&workers(super::spaces::workers(blocks)))?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(operation) = &self.collective.coll {
            self.collective.explain(operation, self.selection.n(), self.size)?;
            return Ok(ExitCode::SUCCESS);
        }
        let cases = match (self.selection.is_empty(), self.size) {
            (true, Some(size)) => vec![contiguous(size)],
            (true, None) => {
                return Err(Failure::BadOption {
                    option: "explain",
                    value: String::new(),
                    why: "it needs a message: --layout NAME or --layout-file FILE, --size BYTES or both; or --coll OPERATION"
                        .to_owned(),
                });
            }
            (false, None) => self.selection.cases()?,
            (false, Some(size)) => {
                let cases = self.selection.cases()?;
                cases
                    .into_iter()
                    .map(|case| repeated(case, "--size", size))
                    .collect::<Result<_, _>>()?
            }
        };
        let mut link = PeerLink::probe(worlds)?;
        let location = Location::of_environment();
        let read = location.read().map_err(gapless::Error::from)?;
        let whose = match (&read, location.path()) {
            (Some(_), Some(path)) => format!("numbers of {}", path.display()),
            _ => "numbers, defaults until tuned".to_owned(),
        };
        let config = Config { tuning: read.unwrap_or_default(), ..Config::default() };
        tell(&link.describe(&config, &whose))?;
        if self.space.involve_device() {
            tell(&describe_devices(&config.tuning))?;
        }
        link.ends = self.space;
        link.turns = self.turns;
        let columns = terminal_columns();
        for case in &cases {
            tell(&explain(case, &link, &config, &self, columns)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A line on each GPU, or on why there are none. Without MPS two processes take turns on a GPU, so of two workers there, each
/// of which stays, the second is not started.
fn workers(devices: Result<Vec<super::spaces::Start>, String>) -> String {
    let line = |(name, starts): super::spaces::Start| match starts {
        Ok(()) => format!("{name}: a worker could be started\n"),
        Err(why) => format!("{name}: no worker could be started: {why}\n"),
    };
    match devices {
        Ok(devices) if devices.is_empty() => {
            "no worker could be started: there is no CUDA device\n".to_owned()
        }
        Ok(devices) => devices.into_iter().map(line).collect(),
        Err(why) => format!("no worker could be started: {why}\n"),
    }
}

/// What the transport between processes promises: of those of the builder and the built-in one, the one that bml prefers.
struct PeerLink {
    limits: Limits,
    /// Whether it is the built-in one, by which memory is mapped and read.
    built_in: bool,
    single_copy: Option<SingleCopyCosts>,
    /// Where the buffers lie.
    ends: Ends,
    /// Whether processes take turns on one device.
    turns: bool,
}

impl PeerLink {
    fn probe(worlds: Worlds<'_>) -> Result<PeerLink, Failure> {
        let builder = worlds.builder()?;
        let rank = |limits: &Limits| (!limits.ordered, predicted_ns(limits, RAIL_BYTES));
        let own = builder.limits().min_by_key(|limits| rank(limits));
        let built_in = builder.uses("sm").then(PeerLink::built_in).transpose()?;
        let (ends, turns) = (Ends::HOST, false);
        match (own, built_in) {
            (Some(own), Some(link)) if rank(&link.limits) <= rank(own) => Ok(link),
            (Some(own), _) => {
                let limits = own.clone();
                Ok(PeerLink { limits, built_in: false, single_copy: None, ends, turns })
            }
            (None, Some(link)) => Ok(link),
            // Alone, a process needs no transport.
            (None, None) => PeerLink::built_in(),
        }
    }

    fn built_in() -> Result<PeerLink, Failure> {
        let config = SmConfig::new(format!("explain-{}", std::process::id()), "explain");
        let mut sm = Sm::new(config).map_err(|error| {
            gapless::Error::from(gapless::BootError::Transport { name: "sm", error })
        })?;
        let single_copy = sm.rdma().map(|rdma| {
            let limits = rdma.rdma_limits();
            SingleCopyCosts {
                operation_ns: f64::from(limits.operation_ns),
                piece_ns: f64::from(limits.piece_ns),
                bandwidth_mb_s: f64::from(limits.bandwidth_mb_s),
                pieces_max: limits.max_pieces as u64,
                devices: false,
                register_ns: [0.0; 2],
            }
        });
        let (limits, ends) = (sm.limits().clone(), Ends::HOST);
        Ok(PeerLink { limits, built_in: true, single_copy, ends, turns: false })
    }

    /// What is known of devices.
    fn devices(&self, memory: ExplainMemory) -> Option<DeviceEnds> {
        let Ends([from, to]) = self.ends;
        // Only devices that share memory can be told to be one.
        let one_device = from == to && from.abilities().shares.is_some();
        let turns = one_device && self.turns;
        let (sender, receiver) = (from.is_device(), to.is_device());
        // As rank 0 sends it to rank 1, which would move it if it were the other way round.
        let sender_keeps = true;
        let locked = memory == ExplainMemory::Locked && sender != receiver;
        let device = if sender { from } else { to };
        let copies_only = !device.abilities().kernels_reach_host;
        let ends =
            DeviceEnds { sender, receiver, one_device, turns, sender_keeps, locked, copies_only };
        (sender || receiver).then_some(ends)
    }

    /// Whether the sender's memory can be mapped where it lies, and whether the receiver's is granted: to devices
    /// only, or out of memory that is page-locked for one.
    fn maps(&self, memory: ExplainMemory) -> [bool; 2] {
        let [sender, receiver] = self.ends.0.map(Where::is_device);
        let [from, to] = self.ends.0.map(|place| place.abilities().shares);
        let maps = match memory {
            ExplainMemory::Alloc => {
                let host = sender && !receiver;
                [!sender || from.is_some(), host || (sender && to.is_some())]
            }
            ExplainMemory::Heap => [false, false],
            ExplainMemory::Locked => [from.is_some(), to.is_some()],
        };
        maps.map(|can| can && self.built_in)
    }

    /// Which staged protocols there are, for a receiver's buffer with so many blocks.
    fn staging(&self, blocks: u64, shared: bool, tuning: &Tuning) -> Option<Staging> {
        // No process of another host is reached by keys.
        let ends = self.devices(ExplainMemory::Heap).filter(|_| self.built_in)?;
        let [from, to] = self.ends.0.map(|place| place.abilities().shares);
        Some(Staging {
            sender_device: ends.sender,
            receiver_device: ends.receiver,
            shared: from.is_some() && from == to,
            one_device: ends.one_device,
            direct: ends.receiver && shared && to.is_some() && blocks == 1,
            fragment_bytes: tuning.staged_fragment_bytes,
            depth: tuning.staged_depth,
        })
    }

    fn describe(&self, config: &Config, whose: &str) -> String {
        let (limits, tuning) = (&self.limits, &config.tuning);
        format!(
            "link {}: {} ns, {} MB/s, eager up to {}\n\
             {whose}: ring {} MB/s, mapped {} MB/s, single copy {} MB/s, \
             rendezvous {} ns, block {} ns\n",
            limits.name,
            limits.latency_ns,
            limits.bandwidth_mb_s,
            Bytes(tuning.eager_bytes_max.min(limits.eager_bytes as u64)),
            tuning.pipeline_mb_s,
            tuning.mapped_mb_s,
            tuning.single_copy_mb_s,
            tuning.rendezvous_ns,
            tuning.block_ns,
        )
    }
}

fn describe_devices(tuning: &Tuning) -> String {
    let gb_s = |mb_s: f64| (mb_s / 1000.0).round();
    format!(
        "devices: kernels {} GB/s within, {} to and {} from another, {} to and {} from the host; copies \
         {} within, {} between, {} down and {} up, {} by the host's processor; launch {} ns, {} until noticed, \
         copies {} apart, rendezvous {} ns; fragments of {}, {} at a time\n",
        gb_s(tuning.device_mb_s),
        gb_s(tuning.peer_store_mb_s),
        gb_s(tuning.peer_load_mb_s),
        gb_s(tuning.store_host_mb_s),
        gb_s(tuning.load_host_mb_s),
        gb_s(tuning.device_copy_mb_s),
        gb_s(tuning.peer_copy_mb_s),
        gb_s(tuning.to_host_mb_s),
        gb_s(tuning.from_host_mb_s),
        gb_s(tuning.device_host_mb_s),
        tuning.launch_ns,
        tuning.launch_wait_ns,
        tuning.copy_gap_ns,
        tuning.device_rendezvous_ns,
        Bytes(tuning.staged_fragment_bytes.into()),
        tuning.staged_depth,
    )
}

/// The candidates for one message, in at most so many columns.
fn explain(
    case: &Case,
    link: &PeerLink,
    config: &Config,
    asked: &Explain,
    columns: Option<usize>,
) -> Result<String, Failure> {
    let memory = asked.memory;
    let (send, recv) = (case.send.datatype.commit()?, case.recv.datatype.commit()?);
    let blocks =
        |layout: &gapless_dtype::Layout, count| layout.blocks_of(count).unwrap_or(u64::MAX);
    let (sender_blocks, receiver_blocks) =
        (blocks(&send, case.send.count), blocks(&recv, case.recv.count));
    // A layout that goes to the other end on its own, the first time.
    let fetched = |layout: &gapless_dtype::Layout, blocks: u64| match blocks {
        0 | 1 => 0,
        _ => Some(layout.flattened_bytes())
            .filter(|len| *len > INLINE_LAYOUT_MAX as u64)
            .unwrap_or(0),
    };
    let [mapped, grants] = link.maps(memory);
    let grants = grants && fetched(&recv, receiver_blocks) <= config.bounds.layout_cache_bytes;
    let situation = Situation {
        bytes: case.payload_bytes,
        sender_blocks,
        sender_span: Convertor::new(&send, case.send.count)
            .ok()
            .and_then(|convertor| convertor.bounds())
            .map_or(0, |(low, high)| low.abs_diff(high)),
        receiver_blocks,
        devices: link.devices(memory),
        local: false,
        link_eager_bytes: (link.limits.eager_bytes as u64).saturating_sub(EAGER_BYTES as u64),
        latency_ns: f64::from(link.limits.latency_ns),
        bandwidth_mb_s: f64::from(link.limits.bandwidth_mb_s),
        mapped,
        grants,
        single_copy: link.single_copy.filter(|_| !link.ends.involve_device()),
        cached: false,
        layout_fetch_bytes: fetched(&send, sender_blocks),
        layout_uses: 0,
        layout_fetch_max: config.bounds.layout_cache_bytes,
        touched: Some(Touched::between((&send, case.send.count), (&recv, case.recv.count))),
        staged: link.staging(receiver_blocks, memory != ExplainMemory::Heap, &config.tuning),
        staged_read: None,
    };
    let candidates = candidates(&situation, &config.tuning);
    let winner = gapless_pml::choose::choose(&situation, &config.tuning, None, |_| true);
    let mut table = Table::new([
        ("protocol", Align::Left),
        ("predicted", Align::Right),
        ("GB/s", Align::Right),
        ("", Align::Left),
    ]);
    let mut impossible = Vec::new();
    for candidate in &candidates {
        if let Some(why) = candidate.excluded {
            impossible.push((candidate.protocol.to_string(), why.to_string()));
            continue;
        }
        let seconds = candidate.predicted_ns * 1e-9;
        let verdict = if candidate.protocol == winner { "chosen" } else { "" };
        let never = candidate.predicted_ns >= f64::MAX;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = case.payload_bytes as f64 / candidate.predicted_ns;
        table.push([
            candidate.protocol.to_string(),
            if never { "-".to_owned() } else { Time(seconds).to_string() },
            if never { "-".to_owned() } else { format!("{rate:.1}") },
            verdict.to_owned(),
        ]);
    }
    Ok(format!(
        "\n{}, {}: {}, sent from {} and received into {}\n{}{}",
        case.name,
        link.ends,
        Bytes(case.payload_bytes),
        counted(sender_blocks, "block"),
        counted(receiver_blocks, "block"),
        table.within(columns),
        not_possible(&impossible, asked.all),
    ))
}

/// Protocols that cannot carry a message, and why; or how many there are.
fn not_possible(protocols: &[(String, String)], all: bool) -> String {
    match protocols.len() {
        0 => String::new(),
        count if !all => {
            let are = if count == 1 { "is" } else { "are" };
            format!("{} {are} impossible; --all says why\n", counted(count as u64, "other"))
        }
        _ => {
            let width = protocols.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            let line = |(name, why): &(String, String)| format!("  {name:<width$}  {why}\n");
            format!("impossible:\n{}", protocols.iter().map(line).collect::<String>())
        }
    }
}

/// A size in bytes, with K, M or G for powers of 1024.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b')
    {
        "" => 1,
        "k" => 1u64 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => {
            return Err(
                "a size is a whole number of bytes, or one with K, M or G behind it".to_owned()
            );
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "a size is a whole number of bytes, less than 2^63".to_owned())?;
    let bytes = number.checked_mul(factor).filter(|bytes| *bytes < 1 << 63);
    bytes.ok_or_else(|| "a size is less than 2^63 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_cannot_be_started_say_why() {
        let devices =
            vec![("cuda:0".to_owned(), Ok(())), ("cuda:1".to_owned(), Err("full".to_owned()))];
        assert_eq!(
            workers(Ok(devices)),
            "cuda:0: a worker could be started\ncuda:1: no worker could be started: full\n"
        );
        assert_eq!(workers(Err("no GPU".to_owned())), "no worker could be started: no GPU\n");
        assert!(workers(Ok(Vec::new())).starts_with("no worker could be started: "));
    }

    #[test]
    fn sizes_have_units() {
        for (text, value) in
            [("64", 64), ("16K", 16 << 10), ("8MiB", 8 << 20), ("1g", 1 << 30), ("7b", 7)]
        {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        for text in ["", "K", "-1", "1X", "99999999999G", "1.5M"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
