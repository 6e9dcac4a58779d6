//! The parts of the page that compare with other libraries: rows of reports of `cargo xtask peers`, whose schema
//! `xtask/src/peers/report.rs` has.

use std::fs;
use std::path::Path;

use gapless_report::Time;
use serde::Deserialize;

use crate::age::dated;
use crate::error::Failure;
use crate::table::{head, line};

/// A table of the page.
pub(super) struct PeerTable {
    /// Of the marks.
    pub(super) section: &'static str,
    /// Below the folder of all results.
    report: &'static str,
    /// What the page calls a piece of work, and its line in the report.
    picks: &'static [(&'static str, &'static str)],
}

pub(super) const PARTS: [PeerTable; 2] = [
    PeerTable { section: "host", report: "cpu/peers.json", picks: MESSAGES },
    PeerTable { section: "windows", report: "cpu/osc/windows.json", picks: WINDOWS },
];

/// One-sided operations, each with its flush.
const WINDOWS: &[(&str, &str)] = &[
    ("put, 8 B", "window put contiguous 8"),
    ("get, 8 B", "window get contiguous 8"),
    ("accumulate, 8 B", "window accumulate contiguous 8"),
    ("fetch and op, 8 B", "window fetch contiguous 8"),
    ("lock, put, unlock, 8 B", "window lock contiguous 8"),
    ("put, 8 B, the target sleeps", "window idle-put contiguous 8"),
    ("get, 8 B, the target sleeps", "window idle-get contiguous 8"),
    ("accumulate, 8 B, the target sleeps", "window idle-accumulate contiguous 8"),
    ("put, 64 KiB", "window put contiguous 65536"),
    ("get, 64 KiB", "window get contiguous 65536"),
    ("accumulate, 64 KiB", "window accumulate contiguous 65536"),
    ("put, rows of 64 B, 64 KiB", "window put rows 65536"),
    ("get, rows of 64 B, 64 KiB", "window get rows 65536"),
    ("accumulate, rows of 64 B, 64 KiB", "window accumulate rows 65536"),
];

const MESSAGES: &[(&str, &str)] = &[
    ("message, 1 B", "message contiguous 1"),
    ("message, 1 KiB", "message contiguous 1024"),
    ("messages of 8 B, 64 in flight, each", "rate 8 64"),
    ("message, 64 KiB", "message contiguous 65536"),
    ("message, 8 MiB", "message contiguous 8388608"),
    ("message, sub-matrix, 8 MiB", "message V 8388608"),
    ("message, triangle, 8 MiB", "message T 8388608"),
    ("message, transposed matrix, 8 MiB", "message X 8388608"),
    ("message, list of 24 B blocks, 8 MiB", "message list3 8388608"),
    ("`World::alloc`: 8 MiB", "message-alloc contiguous 8388608"),
    ("`World::alloc`: sub-matrix, 8 MiB", "message-alloc V 8388608"),
    ("`World::alloc`: triangle, 8 MiB", "message-alloc T 8388608"),
    ("`World::alloc`: transposed matrix, 8 MiB", "message-alloc X 8388608"),
    ("`World::alloc`: list of 8 B blocks, 8 MiB", "message-alloc list1 8388608"),
    ("`World::alloc`: list of 24 B blocks, 8 MiB", "message-alloc list3 8388608"),
    ("pack sub-matrix, 64 KiB", "pack V 65536"),
    ("pack sub-matrix, 8 MiB", "pack V 8388608"),
    ("unpack sub-matrix, 8 MiB", "unpack V 8388608"),
    ("pack triangle, 8 MiB", "pack T 8388608"),
    ("pack transposed matrix, 8 MiB", "pack X 8388608"),
    ("pack records of 28 of 32 B, 8 MiB", "pack struct 8388608"),
    ("unpack records of 28 of 32 B, 8 MiB", "unpack struct 8388608"),
    ("pack list of 24 B blocks, 8 MiB", "pack list3 8388608"),
    ("unpack list of 24 B blocks, 8 MiB", "unpack list3 8388608"),
    ("pack shuffled list of 24 B blocks, 8 MiB", "pack list3s 8388608"),
    ("pack x-face, 32 B in each row, 8 MiB", "pack xface 8388608"),
    ("make a list type of a million blocks", "create 1000000"),
];

#[derive(Deserialize)]
struct Peers {
    command: String,
    commit: String,
    cpu: String,
    processors: usize,
    rows: Vec<PeerRow>,
}

#[derive(Deserialize)]
struct PeerRow {
    work: String,
    seconds: f64,
    over_memcpy: Ratio,
    over_openmpi: Ratio,
    over_mpich: Ratio,
    floor: Option<Floor>,
    met: Option<bool>,
}

#[derive(Deserialize)]
struct Ratio {
    median: f64,
}

#[derive(Deserialize)]
struct Floor {
    over_memcpy: f64,
}

impl PeerTable {
    /// The part, as Markdown.
    pub(super) fn markdown(&self, results: &Path) -> Result<String, Failure> {
        let path = results.join(self.report);
        let text = fs::read_to_string(&path).map_err(Failure::io("read", &path))?;
        let peers: Peers = serde_json::from_str(&text)
            .map_err(|error| Failure::io("read", &path)(error.into()))?;
        let met = peers.rows.iter().filter(|row| row.met == Some(true)).count();
        let marks = peers.rows.iter().filter(|row| row.met.is_some()).count();
        let mut text = format!(
            "`{}` at {}; {}, {} processors.\n{met} of the run's {marks} targets are met.\n\n",
            peers.command,
            dated(&peers.commit, results),
            peers.cpu,
            peers.processors
        );
        text += &head(&["what", "time", "÷ memcpy", "÷ floor", "÷ Open MPI", "÷ MPICH"]);
        for (said, work) in self.picks {
            let row = peers.rows.iter().find(|row| row.work == *work);
            let missing = || Failure::NoRow { path: path.clone(), row: (*work).to_owned() };
            let row = row.ok_or_else(missing)?;
            let floor = row.floor.as_ref().map(|floor| row.over_memcpy.median / floor.over_memcpy);
            text += &line(&[
                (*said).to_owned(),
                Time(row.seconds).to_string(),
                format!("{:.2}", row.over_memcpy.median),
                floor.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
                format!("{:.2}", row.over_openmpi.median),
                format!("{:.2}", row.over_mpich.median),
            ]);
        }
        text.push('\n');
        Ok(text)
    }
}
