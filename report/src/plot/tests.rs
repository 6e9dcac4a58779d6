use super::report::family;
use super::testkit::{Drawn, Text};
use super::*;
use crate::{Machine, Report, Row, Samples};
use std::path::Path;

fn row(case: &str, payload_bytes: u64, gbps: f64) -> Row {
    let median = payload_bytes as f64 / gbps / 1e9;
    let seconds = Samples::from_seconds([median * 0.9, median, median * 1.2]).summary().unwrap();
    Row::new(case, "oneway", "host", "eager", payload_bytes, seconds)
        .against_gbps("memcpy", gbps * 1.25)
        .verified(true)
}

fn one(svgs: Result<Vec<String>, PlotError>) -> String {
    let [svg] = <[String; 1]>::try_from(svgs.unwrap()).expect("one page");
    svg
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
    let series = report.sweeps(report.rows.iter());
    assert_eq!(
        series.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(),
        ["V", "T", "X", "NAS LU y"]
    );
    assert!(series.iter().all(|s| s.rows.len() == 4));
    let svg = one(report.to_svgs());
    for text in ["V", "NAS LU y", "2 MiB", "128 MiB", "GB/s (payload)"] {
        assert!(svg.contains(&format!(">{text}<")), "{text} is missing");
    }
    assert!(svg.contains("A &amp; B &lt;CPU&gt;"), "text is not escaped");
    show("lines.svg", &svg);
}

#[test]
fn single_payloads_become_bars_beside_their_reference() {
    let svg = one(cases().to_svgs());
    for text in ["gapless", "memcpy", "MILC 16,16,16,16", "WRF y 2x2"] {
        assert!(svg.contains(&format!(">{text}<")), "{text} is missing");
    }
    show("bars.svg", &svg);
}

#[test]
fn operations_and_spaces_tell_series_apart() {
    let mut rows = vec![row("V n=512", 1 << 21, 3.0), row("V n=512", 1 << 21, 4.0)];
    rows[1].op = "pack".into();
    let report = report(rows);
    let names: Vec<String> =
        report.sweeps(report.rows.iter()).into_iter().map(|s| s.name).collect();
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
    assert_eq!(report(Vec::new()).to_svgs(), Err(PlotError::Empty));
    let mut only_latency = row("barrier", 1, 1.0);
    only_latency.payload_bytes = 0;
    only_latency.gbps = 0.0;
    assert!(report(vec![only_latency]).to_svgs().is_ok());
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

fn group(label: &str, gbps: &[f64]) -> BarGroup {
    BarGroup { label: label.to_owned(), gbps: gbps.to_vec() }
}

fn swept(name: &str, points: impl IntoIterator<Item = (u64, f64)>) -> Series {
    let point = |(payload_bytes, gbps)| Point {
        payload_bytes,
        gbps,
        spread: Some((gbps * 0.8, gbps * 1.3)),
    };
    Series { name: name.to_owned(), points: points.into_iter().map(point).collect() }
}

/// Pictures of what is awkward: one point, a flat line, nine orders of magnitude, long names, many bars.
fn awkward() -> Vec<String> {
    let powers =
        |rate: f64| (0..31).map(move |exponent| (1 << exponent, rate * f64::from(exponent + 1)));
    let mut all = vec![
        lines("one point", &[swept("V", [(3000, 48.0)])]).unwrap(),
        lines("flat", &[swept("V", [(64 << 20, 355.0), (300 << 20, 380.0)])]).unwrap(),
        lines("close together", &[swept("V", [(1100, 1.0), (1200, 2.0)])]).unwrap(),
        lines("wide", &[swept("contiguous cuda:0->cuda:1, zero-copy-in-out", powers(12.0))])
            .unwrap(),
        lines(
            "squeezed",
            &[swept("a", powers(60.0)), swept("b", powers(0.2)), swept("c", powers(0.001))],
        )
        .unwrap(),
        lines_by("numbers", Axis::Number("thread blocks"), &[swept("V", powers(7.0))]).unwrap(),
    ];
    let time = |ns: f64| Samples::from_seconds([ns * 1e-9, ns * 1.1e-9]).summary().unwrap();
    let points = (0..27).map(|at| (1 << at, time(300.0 + f64::from(1 << at) * 0.04)));
    let curve = Curve { name: "contiguous".to_owned(), points: points.collect() };
    all.push(latency("one way", &[curve]).unwrap());
    for (first, factor) in [(512, 2), (10, 10)] {
        let points =
            (0..5).map(|at| (first * factor_to(factor, at), time(100.0 * f64::from(at + 1))));
        let curve = Curve { name: "list".to_owned(), points: points.collect() };
        all.push(curves("positioning", "blocks", &[curve]).unwrap());
        let points = (0..5).map(|at| (first * factor_to(factor, at), f64::from(at * at + 1)));
        let line = Growth { name: "allreduce".to_owned(), points: points.collect() };
        all.push(growth("growing", "ranks", "messages", &[line]).unwrap());
    }
    let points = (1..=55).map(|day| (day, (day * (55 - day)) as f64)).collect();
    all.push(
        course("days", "day", "persons", &[Growth { name: "ill".to_owned(), points }]).unwrap(),
    );
    let many: Vec<BarGroup> = (1..=70)
        .map(|n| group(&format!("SPECFEM3D cm n={n}"), &[f64::from(n), 0.5 * f64::from(n), 0.0]))
        .collect();
    all.extend(bars("many", &["pack", "unpack", "floor"], &many).unwrap());
    let long = "list3 blocks=2796203, oneway, zero-copy-in-out, 32 MiB × 4, cuda:0->cuda:1";
    let long = [group(long, &[300.0, 380.0]), group("V", &[1.0, 400.0])];
    all.extend(
        bars("p2p-matrix (Intel(R) Xeon(R) Processor), 3 of 9", &["gapless", "memcpy"], &long)
            .unwrap(),
    );
    all.extend(bars("few", &["pack", "unpack"], &[group("V", &[48.0, 32.5])]).unwrap());
    all.extend(bars("nothing", &["pack", "unpack"], &[group("V", &[0.0, 0.0])]).unwrap());
    all
}

fn factor_to(factor: u64, power: u32) -> u64 {
    factor.pow(power)
}

#[test]
fn no_two_labels_touch_and_all_are_in_the_picture() {
    for (at, svg) in awkward().iter().enumerate() {
        show(&format!("awkward-{at}.svg"), svg);
        let drawn = Drawn::read(svg);
        for (at, one) in drawn.texts.iter().enumerate() {
            let [left, top, right, bottom] = one.edges();
            assert!(
                left >= 0.0 && top >= 0.0 && right <= drawn.width && bottom <= drawn.height,
                "{one:?} sticks out of {}",
                drawn.title()
            );
            for other in &drawn.texts[at + 1..] {
                assert!(!one.touches(other), "{one:?} touches {other:?} in {}", drawn.title());
            }
        }
    }
}

#[test]
fn no_picture_is_higher_than_a_page() {
    for svg in awkward() {
        let drawn = Drawn::read(&svg);
        assert!(drawn.height <= HEIGHT_MAX, "{} is {} high", drawn.title(), drawn.height);
    }
    let many: Vec<BarGroup> = (1..=70).map(|n| group(&n.to_string(), &[1.0, 2.0])).collect();
    let pages = bars("many", &["pack", "unpack"], &many).unwrap();
    assert!(pages.len() > 1);
    // None is lost, and none comes twice.
    let labels = pages.iter().flat_map(|svg| Drawn::read(svg).texts);
    let mut seen: Vec<u32> =
        labels.filter(|text| text.anchor == "end").map(|text| text.text.parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (1..=70).collect::<Vec<u32>>());
    let wide = group("wide", &vec![1.0; 500]);
    let names: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(Drawn::read(&one(bars("wide", &names, &[wide]))).height <= HEIGHT_MAX);
}

#[test]
fn axes_hold_every_value() {
    for svg in awkward() {
        let drawn = Drawn::read(&svg);
        let [left, top, right, bottom] = drawn.clip;
        assert!(!drawn.marks.is_empty() || !drawn.bars.is_empty(), "{}", drawn.title());
        for (x, y) in &drawn.marks {
            let within = (left..=right).contains(x) && (top..=bottom).contains(y);
            assert!(within, "({x}, {y}) is not on the axes of {}: {:?}", drawn.title(), drawn.clip);
        }
        for bar in &drawn.bars {
            assert!(bar.x + bar.width <= right + 0.01, "{bar:?} in {}", drawn.title());
        }
        // And little else: the farthest value is in the last quarter of the axis.
        let far = |ends: &mut dyn Iterator<Item = f64>| ends.fold(f64::NEG_INFINITY, f64::max);
        let across = match drawn.bars.is_empty() {
            true => far(&mut drawn.marks.iter().map(|(x, _)| *x)),
            false => far(&mut drawn.bars.iter().map(|bar| bar.x + bar.width)),
        };
        let empty = drawn.title() == "nothing"
            || drawn.title() == "one point"
            || drawn.title() == "close together";
        assert!(empty || across >= left + 0.75 * (right - left), "{} is empty", drawn.title());
        if !drawn.marks.is_empty() {
            let highest = drawn.marks.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
            assert!(highest <= top + 0.25 * (bottom - top), "{} is empty", drawn.title());
        }
    }
}

#[test]
fn a_page_ends_where_the_magnitude_changes() {
    let rates = (0..70).map(|n| if n < 28 { 1800.0 } else { 100.0 });
    let groups: Vec<BarGroup> = rates.map(|rate| group(&rate.to_string(), &[rate, rate])).collect();
    let pages = bars("t", &["pack", "unpack"], &groups).unwrap();
    let counts: Vec<usize> = pages.iter().map(|svg| svg.matches(">1800</text>").count()).collect();
    assert_eq!(counts[0], 28 + 1, "and a tick");
    assert!(counts[1..].iter().all(|count| *count == 0), "{counts:?}");
    // Nor is there a page for a single group that differs a little.
    let few = [group("a", &[10.0]), group("b", &[4.0]), group("c", &[11.0])];
    assert_eq!(bars("t", &["pack"], &few).unwrap().len(), 1);
}

#[test]
fn bars_are_as_long_as_their_values() {
    let svg = one(bars("t", &["pack", "unpack"], &[group("V", &[48.0, 32.0])]));
    let drawn = Drawn::read(&svg);
    let lengths: Vec<f64> = drawn.bars.iter().map(|bar| bar.width).collect();
    let ratio = lengths.iter().copied().fold(0.0, f64::max)
        / lengths.iter().copied().fold(f64::INFINITY, f64::min);
    assert!((ratio - 1.5).abs() < 0.01, "{lengths:?}");
}

#[test]
fn bars_stand_in_the_legends_order() {
    let groups = [group("first", &[1.0, 2.0, 3.0]), group("second", &[6.0, 5.0, 4.0])];
    let svg = one(bars("t", &["a", "b", "c"], &groups));
    let drawn = Drawn::read(&svg);
    let down = |mut texts: Vec<&Text>| -> Vec<String> {
        texts.sort_by(|one, other| one.y.total_cmp(&other.y));
        texts.into_iter().map(|text| text.text.clone()).collect()
    };
    let labelled = |anchor: &str| drawn.texts.iter().filter(|text| text.anchor == anchor).collect();
    assert_eq!(down(labelled("start")), ["a", "b", "c"]);
    assert_eq!(down(labelled("end")), ["first", "second"]);
    let mut bars = drawn.bars.clone();
    bars.sort_by(|one, other| one.y.total_cmp(&other.y));
    let unit = bars[0].width;
    let values: Vec<f64> = bars.iter().map(|bar| (bar.width / unit).round()).collect();
    assert_eq!(values, [1.0, 2.0, 3.0, 6.0, 5.0, 4.0]);
    let colours: Vec<&str> = bars.iter().map(|bar| bar.fill.as_str()).collect();
    assert_eq!(colours[..3], drawn.legend[..]);
    assert_eq!(colours[3..], drawn.legend[..]);
}

#[test]
fn a_legend_names_only_what_has_a_bar() {
    let groups = [group("first", &[1.0, 0.0, 3.0]), group("second", &[6.0, 0.0, 0.0])];
    let svg = one(bars("t", &["a", "b", "c"], &groups));
    assert!(svg.contains(">a<") && svg.contains(">c<") && !svg.contains(">b<"));
    // As elsewhere, whatever is left out.
    assert_eq!(Drawn::read(&svg).legend[1], COLOURS[2].to_lowercase());
}

#[test]
fn axes_that_do_not_begin_at_nothing_say_so() {
    let flat = lines("flat", &[swept("V", [(1, 100.0), (2, 95.0)])]).unwrap();
    assert!(flat.contains("; the axis begins at "), "{flat}");
    let three =
        |rates: [f64; 3]| rates.map(|rate| swept(&rate.to_string(), [(1, rate), (2, rate)]));
    let squeezed = lines("squeezed", &three([1800.0, 100.0, 5.0])).unwrap();
    assert!(
        squeezed.contains("GB/s (payload), logarithmic") && squeezed.contains(">1024<"),
        "{squeezed}"
    );
    let apart = lines("apart", &three([1800.0, 1000.0, 5.0])).unwrap();
    assert!(!apart.contains("logarithmic"));
}

#[test]
fn several_pages_have_a_file_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plot.svg");
    let rows = (0..90).map(|n| row(&format!("layout-{n}x"), 1 << 20, 2.0)).collect();
    let written = report(rows).write_svg(&path).unwrap();
    assert_eq!(written.len(), 3);
    assert_eq!(written[1], folder.path().join("plot-2.svg"));
    assert!(written.iter().all(|path| path.exists()) && !path.exists());
    assert_eq!(sizes().write_svg(&path).unwrap(), [path]);
}

#[test]
fn no_page_of_an_earlier_report_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plot.svg");
    let pages = |layouts: usize| {
        let rows = (0..layouts).map(|n| row(&format!("layout-{n}x"), 1 << 20, 2.0)).collect();
        let written = report(rows).write_svg(&path).unwrap();
        let there = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut there: Vec<_> = there.collect();
        there.sort();
        assert_eq!(there, written);
        written.len()
    };
    assert_eq!([1, 90, 50, 1].map(pages), [1, 3, 2, 1]);
}

#[test]
fn what_is_no_file_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plot.svg");
    std::os::unix::fs::symlink("elsewhere.svg", &path).unwrap();
    let rows = (0..90).map(|n| row(&format!("layout-{n}x"), 1 << 20, 2.0)).collect();
    report(rows).write_svg(&path).unwrap();
    assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
}

/// `GAPLESS_SHOW=folder cargo test -p gapless-report plot` keeps the plots, to be looked at.
fn show(name: &str, svg: &str) {
    if let Some(folder) = std::env::var_os("GAPLESS_SHOW") {
        std::fs::write(Path::new(&folder).join(name), svg).unwrap();
    }
}
