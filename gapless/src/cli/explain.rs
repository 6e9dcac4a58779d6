//! `gapless explain`: the candidates for a message between two processes of this host, their
//! predicted times, and the winner.

use super::failure::Failure;
use super::say;
use super::selection::Selection;
use super::spaces;
use gapless_btl::Btl;
use gapless_btl_sm::{Sm, SmConfig};
use gapless_dtype::{Datatype, Primitive};
use gapless_layouts::{Case, Family, Side};
use gapless_pml::choose::{SingleCopyCosts, candidates};
use gapless_pml::{Config, EAGER_BYTES, INLINE_LAYOUT_MAX, Situation};
use gapless_report::{Align, Bytes, Table, Time};
use std::process::ExitCode;

/// Which message to explain.
#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    #[command(flatten)]
    selection: Selection,
    /// A message of this many contiguous bytes, or layouts repeated up to about this many: 64,
    /// 16K, 8M, 1G
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    size: Option<u64>,
    /// The memory: host, cuda or opencl
    #[arg(long, default_value = "host")]
    space: String,
    /// The sender's memory comes from World::alloc, or from anywhere
    #[arg(long, value_enum, default_value = "alloc")]
    memory: Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Memory {
    Alloc,
    Heap,
}

impl Explain {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        spaces::check(&self.space)?;
        let cases = match (self.selection.is_empty(), self.size) {
            (true, Some(size)) => vec![contiguous(size)],
            (true, None) => {
                return Err(Failure::BadOption {
                    option: "explain",
                    value: String::new(),
                    why: "which message? Give --layout NAME, --size BYTES or both".to_owned(),
                });
            }
            (false, None) => self.selection.cases()?,
            (false, Some(size)) => {
                let cases = self.selection.cases()?;
                cases.into_iter().map(|case| repeated(case, size)).collect::<Result<_, _>>()?
            }
        };
        let link = Link::probe()?;
        let config = Config::default();
        say(&link.describe(&config))?;
        for case in &cases {
            say(&explain(case, &link, &config, self.memory)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What the transport between processes of this host promises.
struct Link {
    limits: gapless_btl::Limits,
    single_copy: Option<SingleCopyCosts>,
}

impl Link {
    fn probe() -> Result<Link, Failure> {
        let config = SmConfig::new(format!("explain-{}", std::process::id()), "explain");
        let mut sm =
            Sm::new(config).map_err(|error| crate::Error::Transport { name: "sm", error })?;
        let single_copy = sm.rdma().map(|rdma| {
            let limits = rdma.rdma_limits();
            SingleCopyCosts {
                operation_ns: f64::from(limits.operation_ns),
                piece_ns: f64::from(limits.piece_ns),
                bandwidth_mb_s: f64::from(limits.bandwidth_mb_s),
                pieces_max: limits.max_pieces as u64,
            }
        });
        Ok(Link { limits: sm.limits().clone(), single_copy })
    }

    fn describe(&self, config: &Config) -> String {
        let (limits, tuning) = (&self.limits, &config.tuning);
        format!(
            "link {}: {} ns, {} MB/s, eager up to {}\n\
             numbers, defaults until tuned: ring {} MB/s, mapped {} MB/s, single copy {} MB/s, \
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

fn explain(case: &Case, link: &Link, config: &Config, memory: Memory) -> Result<String, Failure> {
    let (send, recv) = (case.send.datatype.commit()?, case.recv.datatype.commit()?);
    let blocks =
        |layout: &gapless_dtype::Layout, count| layout.blocks_of(count).unwrap_or(u64::MAX);
    let (sender_blocks, receiver_blocks) =
        (blocks(&send, case.send.count), blocks(&recv, case.recv.count));
    let flattened = send.flatten().len() as u64;
    let fetch = sender_blocks > 1 && flattened > INLINE_LAYOUT_MAX as u64;
    let situation = Situation {
        bytes: case.payload_bytes,
        sender_blocks,
        receiver_blocks,
        host: true,
        local: false,
        link_eager_bytes: (link.limits.eager_bytes as u64).saturating_sub(EAGER_BYTES as u64),
        latency_ns: f64::from(link.limits.latency_ns),
        bandwidth_mb_s: f64::from(link.limits.bandwidth_mb_s),
        mapped: memory == Memory::Alloc,
        single_copy: link.single_copy,
        layout_fetch_bytes: if fetch { flattened } else { 0 },
        layout_fetch_max: config.bounds.layout_cache_bytes,
        staged: None,
    };
    let candidates = candidates(&situation, &config.tuning);
    let winner = gapless_pml::choose::choose(&situation, &config.tuning, None, |_| true);
    let mut table = Table::new([
        ("protocol", Align::Left),
        ("predicted", Align::Right),
        ("GB/s", Align::Right),
        ("", Align::Left),
    ]);
    for candidate in &candidates {
        let seconds = candidate.predicted_ns * 1e-9;
        let verdict = match candidate.excluded {
            Some(why) => format!("impossible: {why}"),
            None if candidate.protocol == winner => "chosen".to_owned(),
            None => String::new(),
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = case.payload_bytes as f64 / candidate.predicted_ns;
        table.push([
            candidate.protocol.to_string(),
            Time(seconds).to_string(),
            format!("{rate:.1}"),
            verdict,
        ]);
    }
    Ok(format!(
        "\n{}: {} in {sender_blocks} blocks to {receiver_blocks}\n{table}",
        case.name,
        Bytes(case.payload_bytes)
    ))
}

/// A message of contiguous bytes.
fn contiguous(size: u64) -> Case {
    let side = Side {
        datatype: Datatype::from(Primitive::Byte),
        count: size,
        origin: 0,
        buffer_bytes: size,
    };
    Case {
        name: "contiguous".to_owned(),
        family: Family::V,
        send: side.clone(),
        recv: side,
        payload_bytes: size,
        expected_send_blocks: Some(1),
        expected_recv_blocks: Some(1),
    }
}

/// A layout's message repeated until it has about `size` bytes, at least once.
fn repeated(mut case: Case, size: u64) -> Result<Case, Failure> {
    let times = (size / case.payload_bytes.max(1)).max(1);
    let too_long = || Failure::BadOption {
        option: "--size",
        value: size.to_string(),
        why: "more instances than a message can have".to_owned(),
    };
    for side in [&mut case.send, &mut case.recv] {
        side.count = side.count.checked_mul(times).ok_or_else(too_long)?;
    }
    case.payload_bytes = case.payload_bytes.checked_mul(times).ok_or_else(too_long)?;
    if times > 1 {
        case.name = format!("{times} × {}", case.name);
    }
    Ok(case)
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
        _ => return Err("a size is a number, with K, M or G behind it".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "more than 64 bits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
