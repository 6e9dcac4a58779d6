//! The schema: what a measuring program writes and every reader expects.
//!
//! ```json
//! {"experiment": "pingpong", "machine": {…}, "commit": "35bc120", "command": "gapless pingpong",
//!  "rows": [{"case": "V n=4096", "op": "oneway", "space": "host", "protocol": "eager",
//!            "payload_bytes": 134217728,
//!            "seconds": {"median": 0.01, "min": 0.009, "max": 0.012, "samples": 31},
//!            "gbps": 13.4, "reference": "memcpy", "ratio": 0.96, "verified": true}]}
//! ```
//!
//! Fields beside these are optional and absent when unknown, so files written before a field existed
//! still read. Keys the schema does not name are kept in `extra`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::{self, FileError};
use crate::machine::Machine;
use crate::samples::Summary;
use crate::validate::{self, Invalid};

/// One run of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the experiment, for example `pingpong`.
    pub experiment: String,
    /// What it ran on.
    pub machine: Machine,
    /// What the program was built of; see [`crate::commit`].
    pub commit: String,
    /// The command that reproduces it.
    pub command: String,
    /// The figures, in the order measured.
    pub rows: Vec<Row>,
    /// Figures that were asked for and are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Absent>,
}

impl Report {
    /// A report of this program, built of [`crate::commit`].
    #[must_use]
    pub fn new(
        experiment: impl Into<String>,
        machine: Machine,
        command: impl Into<String>,
        rows: Vec<Row>,
    ) -> Self {
        Self {
            experiment: experiment.into(),
            machine,
            commit: crate::commit().to_owned(),
            command: command.into(),
            rows,
            absent: Vec::new(),
        }
    }

    /// Adds the figures that could not be had.
    #[must_use]
    pub fn absent(mut self, absent: Vec<Absent>) -> Self {
        self.absent = absent;
        self
    }

    /// Checks every figure against the others in its row.
    ///
    /// # Errors
    /// The first fault found, naming row and case.
    pub fn validate(&self) -> Result<(), Invalid> {
        validate::report(self)
    }

    /// The rows whose result was not compared with what it should be. A program that prints figures
    /// fails if there is one.
    pub fn unverified(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.verified)
    }

    /// Validates, then writes the report as indented JSON, replacing `path` in one step.
    ///
    /// # Errors
    /// [`FileError`], naming the path: the report does not hold together, or the file cannot be written.
    pub fn write_json(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = path.as_ref();
        file::write_atomically(path, self.to_json(path)?.as_bytes())
    }

    /// The text of such a file, which errors call `path`.
    ///
    /// # Errors
    /// [`FileError`], naming the path: the report does not hold together.
    pub fn to_json(&self, path: impl AsRef<Path>) -> Result<String, FileError> {
        let path = path.as_ref();
        self.validate().map_err(|fault| FileError::invalid(path, fault))?;
        let text = serde_json::to_string_pretty(self);
        Ok(text.map_err(|source| FileError::json(path, source))? + "\n")
    }

    /// Reads and validates a report.
    ///
    /// # Errors
    /// [`FileError`], naming the path: it cannot be read, is not of this schema, or does not hold
    /// together.
    pub fn read_json(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let text = file::read(path)?;
        let report: Self =
            serde_json::from_str(&text).map_err(|source| FileError::json(path, source))?;
        report.validate().map_err(|fault| FileError::invalid(path, fault))?;
        Ok(report)
    }
}

/// One figure: one case of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Layout and its parameters, for example `V n=4096`; the first word names the layout.
    pub case: String,
    /// What was timed: `pack`, `unpack`, `oneway`, ….
    pub op: String,
    /// Where the bytes lay: `host`, `cuda:0`, `cuda:0->cuda:1`, ….
    pub space: String,
    /// The protocol or algorithm that ran; `none` where there is no choice.
    pub protocol: String,
    /// Payload of one operation, in bytes, gaps not counted.
    pub payload_bytes: u64,
    /// Time of one operation.
    pub seconds: Summary,
    /// Payload over median time, in GB/s (10⁹ bytes a second).
    pub gbps: f64,
    /// What `ratio` compares with: `memcpy`, `openmpi-4.1.4`, …; null where nothing was compared.
    pub reference: Option<String>,
    /// Ours over the reference in speed, above 1 when we are faster; null where nothing was compared.
    pub ratio: Option<f64>,
    /// Whether every byte of the result, gaps included, was compared with what it should be.
    pub verified: bool,

    /// The reference's own times, from the same run; `ratio` follows from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_seconds: Option<Summary>,
    /// Further references.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Comparison>,
    /// Maximal contiguous runs in one payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// GB/s of the same operation on one buffer that stays in cache, where `gbps` rotates buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_gbps: Option<f64>,
    /// What the figure was to reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Anything an experiment adds. Its keys must not be those above.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}
/// A figure that could not be measured, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// As [`Row::case`].
    pub case: String,
    /// As [`Row::op`].
    pub op: String,
    /// Why, in one line.
    pub why: String,
    /// Whether something went wrong; else the machine lacks what it takes.
    pub failed: bool,
}

/// A bound that a figure should keep, and whether it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Which value is meant: a ratio's reference, or a cost and its unit.
    pub what: String,
    /// The value's bound.
    pub bound: f64,
    /// Whether the value must be at least the bound; else at most.
    pub at_least: bool,
    /// What was reached.
    pub value: f64,
    /// Whether that will do.
    pub met: bool,
}

impl Mark {
    /// A value that is to be `bound` at least.
    #[must_use]
    pub fn at_least(what: impl Into<String>, bound: f64, value: f64) -> Mark {
        Mark { what: what.into(), bound, at_least: true, value, met: value >= bound }
    }

    /// A value that is to be `bound` at most.
    #[must_use]
    pub fn at_most(what: impl Into<String>, bound: f64, value: f64) -> Mark {
        Mark { what: what.into(), bound, at_least: false, value, met: value <= bound }
    }
}

/// A second reference beside a row's first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What is compared with.
    pub reference: String,
    /// Ours over the reference in speed, above 1 when we are faster.
    pub ratio: f64,
    /// The reference's times, where they come from the same run; `ratio` follows from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Summary>,
}

impl Row {
    /// A figure without a reference, not verified yet.
    #[must_use]
    pub fn new(
        case: impl Into<String>,
        op: impl Into<String>,
        space: impl Into<String>,
        protocol: impl Into<String>,
        payload_bytes: u64,
        seconds: Summary,
    ) -> Self {
        Self {
            case: case.into(),
            op: op.into(),
            space: space.into(),
            protocol: protocol.into(),
            payload_bytes,
            gbps: seconds.gbps(payload_bytes),
            seconds,
            reference: None,
            ratio: None,
            verified: false,
            reference_seconds: None,
            others: Vec::new(),
            blocks: None,
            resident_gbps: None,
            marks: Vec::new(),
            extra: BTreeMap::new(),
        }
    }

    /// Compares with `reference`, timed in the same run on the same payload. The first call sets
    /// `ratio`; later ones add to `others`.
    #[must_use]
    pub fn against(self, reference: impl Into<String>, seconds: Summary) -> Self {
        let ratio = seconds.median / self.seconds.median;
        self.compared(reference.into(), ratio, Some(seconds))
    }

    /// Compares with a rate known from elsewhere (a floor, a committed result), in GB/s.
    #[must_use]
    pub fn against_gbps(self, reference: impl Into<String>, gbps: f64) -> Self {
        let ratio = self.gbps / gbps;
        self.compared(reference.into(), ratio, None)
    }

    /// The ratio to `reference`, wherever among the references it stands.
    #[must_use]
    pub fn ratio_to(&self, reference: &str) -> Option<f64> {
        if self.reference.as_deref() == Some(reference) {
            return self.ratio;
        }
        self.others.iter().find(|other| other.reference == reference).map(|other| other.ratio)
    }

    /// Says whether the result was compared byte by byte and found right.
    #[must_use]
    pub fn verified(mut self, verified: bool) -> Self {
        self.verified = verified;
        self
    }

    /// Sets the number of maximal contiguous runs in one payload.
    #[must_use]
    pub fn blocks(mut self, blocks: u64) -> Self {
        self.blocks = Some(blocks);
        self
    }

    /// Sets the resident figure, in GB/s.
    #[must_use]
    pub fn resident_gbps(mut self, gbps: f64) -> Self {
        self.resident_gbps = Some(gbps);
        self
    }

    /// Adds something that the figure should reach.
    #[must_use]
    pub fn mark(mut self, mark: Mark) -> Self {
        self.marks.push(mark);
        self
    }

    /// Whether the figure reaches all that it should; `None` where nothing is asked of it.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        (!self.marks.is_empty()).then(|| self.marks.iter().all(|mark| mark.met))
    }

    /// Adds a field of the experiment's own. [`Report::validate`] refuses a key of the schema.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(key.into(), value.into());
        self
    }

    fn compared(mut self, reference: String, ratio: f64, seconds: Option<Summary>) -> Self {
        if self.reference.is_none() {
            self.reference = Some(reference);
            self.ratio = Some(ratio);
            self.reference_seconds = seconds;
        } else {
            self.others.push(Comparison { reference, ratio, seconds });
        }
        self
    }
}

#[cfg(test)]
mod tests;
