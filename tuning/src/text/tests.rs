use super::*;

fn read(text: &str) -> Result<Tuning, TuningError> {
    parse(text, Path::new("/somewhere/tuning.toml"))
}

fn refused(text: &str) -> TuningError {
    read(text).expect_err(text)
}

/// Every number set to something inside its bounds that is not its default.
fn other() -> Tuning {
    let mut tuning = Tuning::default();
    for key in KEYS {
        match (key.value)(&mut tuning) {
            Value::Real(value) => *value = (*value + 1.25).clamp(key.least, key.most),
            Value::Whole(value) => *value += 1,
            Value::Short(value) => *value += 1,
        }
    }
    tuning
}

#[test]
fn what_is_written_is_read_again() {
    for tuning in [Tuning::default(), other()] {
        let text = write(&tuning);
        assert_eq!(read(&text).unwrap(), tuning, "{text}");
        assert!(text.len() < crate::BYTES_MAX / 4);
    }
}

#[test]
fn every_number_has_its_own_key() {
    let (mut names, default) = (Vec::new(), Tuning::default());
    for key in KEYS {
        let path = key.path();
        assert!(!names.contains(&path), "{path} twice");
        names.push(path);
        let mut changed = default.clone();
        match (key.value)(&mut changed) {
            Value::Real(value) => *value += 1.0,
            Value::Whole(value) => *value += 1,
            Value::Short(value) => *value += 1,
        }
        assert_ne!(changed, default);
    }
    // Written out as `Debug` does it, a field is a word before a colon.
    let debug = format!("{default:?}");
    assert_eq!(debug.matches(": ").count(), KEYS.len());
}

#[test]
fn every_default_lies_in_its_bounds() {
    let mut tuning = Tuning::default();
    for key in KEYS {
        #[expect(clippy::cast_precision_loss, reason = "defaults are small")]
        let value = match (key.value)(&mut tuning) {
            Value::Real(value) => *value,
            Value::Whole(value) => *value as f64,
            Value::Short(value) => f64::from(*value),
        };
        assert!(value >= key.least && value <= key.most, "{} = {value}", key.path());
    }
}

#[test]
fn what_is_missing_keeps_its_default() {
    assert_eq!(read("version = 1").unwrap(), Tuning::default());
    let tuning = read("version = 1\nhost.block_ns = 3\n").unwrap();
    assert_eq!(tuning, Tuning { block_ns: 3.0, ..Tuning::default() });
}

#[test]
fn the_version_comes_first() {
    assert!(matches!(refused(""), TuningError::NoVersion { .. }));
    assert!(matches!(refused("[host]\ndepth = 3"), TuningError::NoVersion { .. }));
    // What a later version has is not complained of.
    let later = "# a comment\nversion = 2\n[gadgets]\nsize = 'big'\n";
    assert!(matches!(refused(later), TuningError::Version { line: 2, .. }));
    assert!(matches!(refused("version = '1'"), TuningError::WrongType { line: 1, .. }));
    assert!(matches!(refused("version = 1.0"), TuningError::WrongType { line: 1, .. }));
}

#[test]
fn errors_name_file_line_and_key() {
    let error = refused("version = 1\n\n[host]\nblock_ns = 1.0\nblocks_ns = 2.0\n").to_string();
    for part in ["/somewhere/tuning.toml", "line 5", "host.blocks_ns"] {
        assert!(error.contains(part), "{error}");
    }
    let near = refused("version = 1\n[host]\nBlockNS = 2.0\n").to_string();
    assert!(near.contains("did you mean \"host.block_ns\""), "{near}");
    let elsewhere = refused("version = 1\nblock_ns = 2.0\n").to_string();
    assert!(elsewhere.contains("line 2") && elsewhere.contains("host.block_ns"), "{elsewhere}");
    let error = refused("version = 1\n[host]\n\ndepth = 'many'\n").to_string();
    assert!(error.contains("line 4") && error.contains("host.depth") && error.contains("many"));
    assert!(matches!(refused("version = 1\n[host"), TuningError::Syntax { line: 2, .. }));
    let twice = refused("version = 1\n[host]\ndepth = 1\ndepth = 2\n");
    assert!(matches!(twice, TuningError::Syntax { line: 4, .. }), "{twice}");
    assert!(matches!(refused("version = 1\nhost = 3"), TuningError::WrongType { line: 2, .. }));
    assert!(matches!(refused("version = 1\n[[host]]\n"), TuningError::WrongType { .. }));
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let absurd = ["nan", "-nan", "inf", "-inf", "-1", "-0.001", "1e300", "9223372036854775807"];
    for key in KEYS {
        let depends = ["0.5", "true", "'1'", "[1]", "1979-05-27", "{ a = 1 }"];
        for value in absurd.iter().chain(&depends) {
            let text = format!("version = 1\n[{}]\n{} = {value}\n", key.table, key.name);
            match read(&text) {
                // Half a nanosecond is fine.
                Ok(_) if *value == "0.5" && key.unit == crate::Unit::Ns => {}
                Err(
                    TuningError::OutOfRange { line: 3, key: named, .. }
                    | TuningError::WrongType { line: 3, key: named, .. },
                ) => assert_eq!(named, key.path()),
                other => panic!("{text}{other:?}"),
            }
        }
    }
    assert_eq!(read("version = 1\nhost.block_ns = -0.0").unwrap().block_ns.to_bits(), 0);
}

#[test]
fn hostile_texts_do_no_harm() {
    let deep = format!("version = 1\nhost.depth = {}1", "[".repeat(30_000));
    assert!(matches!(refused(&deep), TuningError::Syntax { .. }));
    let key = format!("version = 1\n{} = 1", "x".repeat(50_000));
    assert!(refused(&key).to_string().len() < 300);
    let dots = format!("version = 1\nhost{} = 1", ".x".repeat(20_000));
    let _ = refused(&dots).to_string();
    assert!(
        refused(&format!("version = 1\nhost.depth = '{}'", "é".repeat(9_000))).to_string().len()
            < 400
    );
}
