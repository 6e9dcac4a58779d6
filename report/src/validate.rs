//! What must hold between the figures of a report.
//!
//! Derived figures are stored beside what they derive from, so that a file can be read without a
//! program; the price is that they could disagree. Here that is an error that names the row.

use crate::samples::{self, Summary};
use crate::schema::{Comparison, Mark, Report, Row};

/// Derived figures may be rounded to three digits by hand-edited files, not more.
const TOLERANCE: f64 = 0.01;

/// The keys a row owns; `extra` must not repeat one.
const ROW_KEYS: [&str; 15] = [
    "case",
    "op",
    "space",
    "protocol",
    "payload_bytes",
    "seconds",
    "gbps",
    "reference",
    "ratio",
    "verified",
    "reference_seconds",
    "others",
    "blocks",
    "resident_gbps",
    "marks",
];

/// A report that does not hold together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// A field that says what the report is about is empty.
    #[error("the report's {field} is empty")]
    EmptyHeader {
        /// The field's key.
        field: &'static str,
    },
    /// The report holds no figure.
    #[error("the report has no rows")]
    NoRows,
    /// One row is at fault.
    #[error("row {row} ({case}): {fault}")]
    Row {
        /// Position in `rows`, from 0.
        row: usize,
        /// The row's case.
        case: String,
        /// What is wrong with it.
        fault: Fault,
    },
}

/// What is wrong with one row.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// A naming field is empty.
    #[error("{field} is empty")]
    Empty {
        /// The field's key.
        field: &'static str,
    },
    /// Times are not positive, finite and ordered `min ≤ q1 ≤ median ≤ q3 ≤ max`, or nothing was sampled.
    #[error("{field} is no summary of positive times: {summary:?}")]
    Times {
        /// The field's key.
        field: &'static str,
        /// The offending summary.
        summary: Box<Summary>,
    },
    /// A rate or a ratio is negative, zero where it cannot be, infinite or not a number.
    #[error("{field} is {value}")]
    Value {
        /// The field's key.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A derived figure does not follow from those beside it.
    #[error("{field} is {stated}, but the times beside it give {derived}")]
    Contradiction {
        /// The field's key.
        field: &'static str,
        /// What the report states.
        stated: f64,
        /// What follows from its times.
        derived: f64,
    },
    /// One of `reference` and `ratio` is there without the other.
    #[error("reference and ratio must be given together")]
    HalfComparison,
    /// The same reference appears twice.
    #[error("{reference} is compared with twice")]
    RepeatedReference {
        /// The reference's name.
        reference: String,
    },
    /// A mark is said to be met and is not, or the other way round.
    #[error("{what}: {value} is not judged by its bound, {bound}")]
    Judgement {
        /// The mark's value.
        what: String,
        /// Its bound.
        bound: f64,
        /// What was reached.
        value: f64,
    },
    /// An extra field has the name of a field of the schema.
    #[error("extra field {key} has a name of the schema")]
    ReservedKey {
        /// The field's key.
        key: String,
    },
}

/// Checks a whole report; the first fault wins.
pub(crate) fn report(report: &Report) -> Result<(), Invalid> {
    for (field, text) in [
        ("experiment", &report.experiment),
        ("commit", &report.commit),
        ("command", &report.command),
    ] {
        if text.is_empty() {
            return Err(Invalid::EmptyHeader { field });
        }
    }
    if report.rows.is_empty() {
        return Err(Invalid::NoRows);
    }
    for (index, checked) in report.rows.iter().enumerate() {
        row(checked).map_err(|fault| Invalid::Row {
            row: index,
            case: checked.case.clone(),
            fault,
        })?;
    }
    Ok(())
}

fn row(row: &Row) -> Result<(), Fault> {
    for (field, text) in
        [("case", &row.case), ("op", &row.op), ("space", &row.space), ("protocol", &row.protocol)]
    {
        if text.is_empty() {
            return Err(Fault::Empty { field });
        }
    }
    times("seconds", &row.seconds)?;
    follows("gbps", row.gbps, samples::gbps(row.payload_bytes, row.seconds.median))?;
    if let Some(value) = row.resident_gbps {
        positive("resident_gbps", value)?;
    }
    first_comparison(row)?;
    for other in &row.others {
        comparison(row, other)?;
    }
    repeated_reference(row)?;
    row.marks.iter().try_for_each(mark)?;
    if let Some(key) = row.extra.keys().find(|key| ROW_KEYS.contains(&key.as_str())) {
        return Err(Fault::ReservedKey { key: key.clone() });
    }
    Ok(())
}

fn first_comparison(row: &Row) -> Result<(), Fault> {
    match (&row.reference, row.ratio) {
        (None, None) if row.reference_seconds.is_none() && row.others.is_empty() => Ok(()),
        (Some(reference), Some(ratio)) => comparison(
            row,
            &Comparison { reference: reference.clone(), ratio, seconds: row.reference_seconds },
        ),
        _ => Err(Fault::HalfComparison),
    }
}

fn comparison(row: &Row, with: &Comparison) -> Result<(), Fault> {
    if with.reference.is_empty() {
        return Err(Fault::Empty { field: "reference" });
    }
    positive("ratio", with.ratio)?;
    if let Some(theirs) = &with.seconds {
        times("reference_seconds", theirs)?;
        follows("ratio", with.ratio, theirs.median / row.seconds.median)?;
    }
    Ok(())
}

fn mark(mark: &Mark) -> Result<(), Fault> {
    if mark.what.is_empty() {
        return Err(Fault::Empty { field: "mark" });
    }
    let judged = if mark.at_least { mark.value >= mark.bound } else { mark.value <= mark.bound };
    if mark.value.is_finite() && mark.bound.is_finite() && judged == mark.met {
        return Ok(());
    }
    Err(Fault::Judgement { what: mark.what.clone(), bound: mark.bound, value: mark.value })
}

fn repeated_reference(row: &Row) -> Result<(), Fault> {
    let mut seen: Vec<&str> = row.reference.as_deref().into_iter().collect();
    for other in &row.others {
        if seen.contains(&other.reference.as_str()) {
            return Err(Fault::RepeatedReference { reference: other.reference.clone() });
        }
        seen.push(&other.reference);
    }
    Ok(())
}

fn times(field: &'static str, summary: &Summary) -> Result<(), Fault> {
    let rising = [
        summary.min,
        summary.q1.unwrap_or(summary.min),
        summary.median,
        summary.q3.unwrap_or(summary.max),
        summary.max,
    ];
    let usable = rising.iter().all(|s| s.is_finite() && *s > 0.0) && rising.is_sorted();
    if usable && summary.samples > 0 {
        return Ok(());
    }
    Err(Fault::Times { field, summary: Box::new(*summary) })
}

fn positive(field: &'static str, value: f64) -> Result<(), Fault> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Fault::Value { field, value })
}

fn follows(field: &'static str, stated: f64, derived: f64) -> Result<(), Fault> {
    if !stated.is_finite() || stated < 0.0 {
        return Err(Fault::Value { field, value: stated });
    }
    if (stated - derived).abs() <= TOLERANCE * derived.abs() {
        return Ok(());
    }
    Err(Fault::Contradiction { field, stated, derived })
}
