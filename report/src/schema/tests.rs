use super::*;
use crate::{Fault, Samples};

const GOLDEN: &str = include_str!("golden.json");

fn golden() -> Report {
    serde_json::from_str(GOLDEN).unwrap()
}

/// The golden report with one row changed, and the fault that validation finds.
fn fault(change: impl FnOnce(&mut Row)) -> Fault {
    let mut report = golden();
    change(&mut report.rows[0]);
    match report.validate().unwrap_err() {
        Invalid::Row { row: 0, case, fault } => {
            assert_eq!(case, report.rows[0].case);
            fault
        }
        other => panic!("not a fault of the row: {other}"),
    }
}

#[test]
fn the_golden_report_reads_validates_and_writes_unchanged() {
    let report = golden();
    report.validate().unwrap();
    assert_eq!(report.rows[0].ratio_to("memcpy"), Some(0.5));
    assert_eq!(report.rows[0].ratio_to("openmpi-4.1.4"), Some(2.0));
    assert_eq!(report.rows[0].extra["gaps_untouched"], Value::Bool(true));
    let written = serde_json::to_string_pretty(&report).unwrap();
    assert_eq!(written, GOLDEN.trim_end());
}

/// The fields the schema promises are there, and only they, when nothing optional is known.
#[test]
fn a_minimal_row_has_every_promised_key_and_no_other() {
    let time = Samples::from_seconds([1e-3]).summary().unwrap();
    let row = Row::new("V n=64", "pack", "host", "cpu", 32_768, time);
    let value = serde_json::to_value(&row).unwrap();
    let keys: Vec<&str> = value.as_object().unwrap().keys().map(|k| &**k).collect();
    let mut promised = vec![
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
    ];
    promised.sort_unstable();
    let mut keys = keys;
    keys.sort_unstable();
    assert_eq!(keys, promised);
    assert_eq!(serde_json::from_value::<Row>(value).unwrap(), row);
}

#[test]
fn builders_derive_what_validation_expects() {
    let time = |seconds| Samples::from_seconds([seconds]).summary().unwrap();
    let row = Row::new("V n=64", "pack", "host", "cpu", 32_768, time(2e-6))
        .against("memcpy", time(1e-6))
        .against_gbps("floor", 32.768)
        .with("depth", 4);
    assert_eq!(row.ratio_to("memcpy"), Some(0.5));
    assert!((row.ratio_to("floor").unwrap() - 0.5).abs() < 1e-12);
    assert_eq!(row.ratio_to("mpich"), None);
    let report = Report::new("pack", Machine::default(), "test", vec![row]);
    report.validate().unwrap();
    assert_eq!(report.unverified().count(), 1);
}

#[test]
fn a_ratio_is_reference_time_over_our_time() {
    assert_eq!(
        fault(|row| row.ratio = Some(2.0)),
        Fault::Contradiction { field: "ratio", stated: 2.0, derived: 0.5 }
    );
    // Without the reference's times there is nothing to contradict.
    let mut report = golden();
    report.rows[0].reference_seconds = None;
    report.rows[0].ratio = Some(2.0);
    report.validate().unwrap();
}

#[test]
fn figures_that_contradict_each_other() {
    assert!(matches!(fault(|row| row.gbps *= 2.0), Fault::Contradiction { field: "gbps", .. }));
    assert!(matches!(
        fault(|row| row.payload_bytes = 1),
        Fault::Contradiction { field: "gbps", .. }
    ));
    assert!(matches!(fault(|row| row.seconds.min = 1.0), Fault::Times { field: "seconds", .. }));
    assert!(matches!(fault(|row| row.seconds.samples = 0), Fault::Times { .. }));
    assert!(matches!(fault(|row| row.seconds.q1 = Some(0.0001)), Fault::Times { .. }));
}

#[test]
fn values_that_are_no_figures() {
    assert!(matches!(fault(|row| row.gbps = f64::NAN), Fault::Value { field: "gbps", .. }));
    assert!(matches!(fault(|row| row.seconds.median = f64::NAN), Fault::Times { .. }));
    assert!(matches!(fault(|row| row.resident_gbps = Some(-1.0)), Fault::Value { .. }));
    assert!(matches!(
        fault(|row| {
            row.reference_seconds = None;
            row.ratio = Some(0.0);
        }),
        Fault::Value { field: "ratio", .. }
    ));
}

#[test]
fn names_and_references() {
    assert_eq!(fault(|row| row.protocol.clear()), Fault::Empty { field: "protocol" });
    assert_eq!(fault(|row| row.ratio = None), Fault::HalfComparison);
    assert_eq!(fault(|row| row.reference = None), Fault::HalfComparison);
    assert_eq!(
        fault(|row| row.others[0].reference = "memcpy".into()),
        Fault::RepeatedReference { reference: "memcpy".into() }
    );
    assert_eq!(
        fault(|row| {
            row.extra.insert("ratio".into(), Value::Null);
        }),
        Fault::ReservedKey { key: "ratio".into() }
    );
}

#[test]
fn reports_about_nothing() {
    let mut report = golden();
    report.rows.clear();
    assert_eq!(report.validate(), Err(Invalid::NoRows));
    let mut report = golden();
    report.command.clear();
    assert_eq!(report.validate(), Err(Invalid::EmptyHeader { field: "command" }));
}

#[test]
fn files_round_trip_and_name_themselves_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    golden().write_json(&path).unwrap();
    assert_eq!(Report::read_json(&path).unwrap(), golden());

    let mut broken = golden();
    broken.rows[0].gbps = 1.0;
    let error = broken.write_json(&path).unwrap_err().to_string();
    assert!(
        error.contains("report.json does not hold together: row 0 (V n=4096): gbps"),
        "{error}"
    );
    assert_eq!(Report::read_json(&path).unwrap(), golden(), "the old file stays");

    std::fs::write(&path, serde_json::to_string(&broken).unwrap()).unwrap();
    assert!(matches!(Report::read_json(&path), Err(FileError::Invalid { .. })));
    std::fs::write(&path, "{\"experiment\": 1}").unwrap();
    let error = Report::read_json(&path).unwrap_err().to_string();
    assert!(error.contains("report.json is no report"), "{error}");
    let error = Report::read_json(folder.path().join("none")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read"), "{error}");
}

/// What a figure was to reach is judged once, and a file cannot claim otherwise.
#[test]
fn marks_are_judged_and_kept() {
    assert!(Mark::at_least("memcpy", 0.5, 0.5).met && !Mark::at_least("memcpy", 0.5, 0.49).met);
    assert!(Mark::at_most("µs", 2.0, 2.0).met && !Mark::at_most("µs", 2.0, 2.1).met);
    let mut report = golden();
    let row = report.rows.remove(0);
    assert_eq!(row.met(), None);
    let row = row.mark(Mark::at_least("memcpy", 0.4, 0.5));
    assert_eq!(row.met(), Some(true));
    let row = row.mark(Mark::at_least("floor", 0.9, 0.5));
    assert_eq!(row.met(), Some(false));
    report.rows.insert(0, row);
    let missing = |failed| Absent { case: "a".into(), op: "b".into(), why: "c".into(), failed };
    let report = report.absent(vec![missing(true), missing(false)]);
    report.validate().unwrap();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    assert!(report.table().to_string().contains("MISSED"));
    let claimed = fault(|row| {
        row.marks.push(Mark { met: true, ..Mark::at_least("floor", 0.9, 0.5) });
    });
    assert!(matches!(claimed, Fault::Judgement { .. }), "{claimed}");
}
