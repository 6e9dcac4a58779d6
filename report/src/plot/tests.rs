use super::*;
use crate::{Machine, Samples};

fn row(case: &str, payload_bytes: u64, gbps: f64) -> Row {
    let median = payload_bytes as f64 / gbps / 1e9;
    let seconds = Samples::from_seconds([median * 0.9, median, median * 1.2]).summary().unwrap();
    Row::new(case, "oneway", "host", "eager", payload_bytes, seconds)
        .against_gbps("memcpy", gbps * 1.25)
        .verified(true)
}

fn report(rows: Vec<Row>) -> Report {
    let machine = Machine { cpu: "A & B <CPU>".into(), ..Machine::default() };
    Report::new("pingpong", machine, "gapless pingpong", rows)
}

/// Sizes of V, T and X as the papers have them.
fn sizes() -> Report {
    let mut rows = Vec::new();
    for (case, scale) in [("V", 12.0), ("T", 9.0), ("X", 2.5), ("NAS LU y", 5.0)] {
        for exponent in [9u32, 10, 11, 12] {
            let n = 1u64 << exponent;
            rows.push(row(
                &format!("{case} n={n}"),
                8 * n * n,
                scale - 0.4 * f64::from(exponent - 8),
            ));
        }
    }
    report(rows)
}

fn cases() -> Report {
    report(
        [
            ("NAS MG x 130,66,66", 32_768, 3.1),
            ("MILC 16,16,16,16", 98_304, 7.7),
            ("WRF y 2x2", 90_804, 4.2),
            ("SPECFEM3D oc k=3225", 12_900, 1.4),
            ("LAMMPS full k=3062", 195_968, 2.2),
        ]
        .map(|(case, payload, gbps)| row(case, payload, gbps))
        .into(),
    )
}

#[test]
fn several_payloads_become_lines() {
    let report = sizes();
    let series = report.series();
    assert_eq!(
        series.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(),
        ["V", "T", "X", "NAS LU y"]
    );
    assert!(series.iter().all(|s| s.points.len() == 4));
    let svg = report.to_svg().unwrap();
    for text in ["V", "NAS LU y", "2 MiB", "128 MiB", "GB/s (payload)"] {
        assert!(svg.contains(&format!(">{text}<")), "{text} is missing");
    }
    assert!(svg.contains("A &amp; B &lt;CPU&gt;"), "text is not escaped");
    show("lines.svg", &svg);
}

#[test]
fn single_payloads_become_bars_beside_their_reference() {
    let svg = cases().to_svg().unwrap();
    for text in ["gapless", "memcpy", "MILC 16,16,16,16", "WRF y 2x2"] {
        assert!(svg.contains(&format!(">{text}<")), "{text} is missing");
    }
    show("bars.svg", &svg);
}

#[test]
fn operations_and_spaces_tell_series_apart() {
    let mut rows = vec![row("V n=512", 1 << 21, 3.0), row("V n=512", 1 << 21, 4.0)];
    rows[1].op = "pack".into();
    let names: Vec<String> = report(rows).series().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["V, oneway", "V, pack"]);
}

#[test]
fn families() {
    for (case, name) in [
        ("V n=4096", "V"),
        ("NAS LU y n=12", "NAS LU y"),
        ("MILC 16,16,16,16", "MILC"),
        ("contiguous", "contiguous"),
        ("", ""),
    ] {
        assert_eq!(family(case), name);
    }
}

#[test]
fn nothing_to_plot_is_an_error() {
    assert_eq!(lines("t", &[]), Err(PlotError::Empty));
    assert_eq!(bars("t", &["a"], &[]), Err(PlotError::Empty));
    assert_eq!(report(Vec::new()).to_svg(), Err(PlotError::Empty));
    let mut only_latency = row("barrier", 1, 1.0);
    only_latency.payload_bytes = 0;
    only_latency.gbps = 0.0;
    assert!(report(vec![only_latency]).to_svg().is_ok());
}

#[test]
fn values_off_the_axes_are_named() {
    let point = |payload_bytes, gbps| Point { payload_bytes, gbps, spread: None };
    for bad in [point(0, 1.0), point(1, f64::NAN), point(1, -1.0)] {
        let series = Series { name: "V".into(), points: vec![bad] };
        let error = lines("t", &[series]).unwrap_err();
        assert!(error.to_string().starts_with("V: "), "{error}");
    }
    let group = |gbps: Vec<f64>| BarGroup { label: "V".into(), gbps };
    assert!(matches!(
        bars("t", &["a"], &[group(vec![f64::INFINITY])]),
        Err(PlotError::OffAxis { .. })
    ));
    assert!(matches!(
        bars("t", &["a", "b"], &[group(vec![1.0])]),
        Err(PlotError::UnevenGroup { .. })
    ));
}

#[test]
fn one_byte_and_every_byte() {
    let extremes = Series {
        name: "V".into(),
        points: [1, u64::MAX]
            .map(|payload_bytes| Point { payload_bytes, gbps: 1.0, spread: None })
            .into(),
    };
    lines("t", std::slice::from_ref(&extremes)).unwrap();
    let one = Series { points: extremes.points[..1].into(), ..extremes };
    lines("t", &[one]).unwrap();
}

#[test]
fn an_unwritable_plot_names_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plot.svg");
    sizes().write_svg(&path).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("<svg"));
    let error = report(Vec::new()).write_svg(&path).unwrap_err().to_string();
    assert!(error.contains("plot.svg"), "{error}");
}

/// `GAPLESS_SHOW=folder cargo test -p gapless-report plot` keeps the plots, to be looked at.
fn show(name: &str, svg: &str) {
    if let Some(folder) = std::env::var_os("GAPLESS_SHOW") {
        std::fs::write(Path::new(&folder).join(name), svg).unwrap();
    }
}
