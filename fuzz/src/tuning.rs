//! Tuning files: any file is refused in one line, or read. If it is read, every number is inside its bounds and is
//! written back as it was.

use crate::input::Input;
use gapless::tuning::{BYTES_MAX, KEYS, TuningError, Value, parse, write};
use std::path::Path;

/// Longest error that somebody would read.
const ERROR_MAX: usize = 1000;

pub(crate) fn run(bytes: &[u8]) {
    let Some((&how, rest)) = bytes.split_first() else { return };
    let text = match how % 3 {
        0 => String::from_utf8_lossy(rest).into_owned(),
        1 => format!("version = 1\n{}", String::from_utf8_lossy(rest)),
        _ => composed(&mut Input(rest)),
    };
    let path = Path::new("fuzzed.toml");
    match parse(&text[..text.floor_char_boundary(BYTES_MAX)], path) {
        Ok(mut tuning) => {
            let again = parse(&write(&tuning), path);
            assert_eq!(again.as_ref(), Ok(&tuning), "what is written is not what is read");
            for key in KEYS {
                #[expect(clippy::cast_precision_loss, reason = "bounds are not that sharp")]
                let value = match (key.value)(&mut tuning) {
                    Value::Real(value) => *value,
                    Value::Whole(value) => *value as f64,
                    Value::Short(value) => f64::from(*value),
                };
                assert!(value >= key.least && value <= key.most, "{}: {value}", key.path());
            }
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.len() < ERROR_MAX && said.contains("fuzzed.toml"), "{said}");
            assert!(!said.contains('\n'), "an error of several lines: {said}");
            let of_a_file =
                matches!(error, TuningError::Missing { .. } | TuningError::Unreadable { .. });
            assert!(!of_a_file, "nothing was opened");
        }
    }
}

/// A file that is nearly right: known keys, odd values.
fn composed(input: &mut Input<'_>) -> String {
    let mut text = String::from("version = 1\n");
    while !input.is_over() && text.len() < 4096 {
        let key = KEYS[usize::from(input.byte()) % KEYS.len()];
        let value = match input.byte() % 6 {
            0 => input.number().to_string(),
            1 => input.signed().to_string(),
            2 => format!("{:?}", f64::from_bits(input.number())),
            3 => format!("0x{:x}", input.number()),
            4 => format!("{}.{}", input.byte(), input.short()),
            _ => String::from_utf8_lossy(input.take(8)).into_owned(),
        };
        let line = match input.byte() % 4 {
            0 => format!("[{}]\n{} = {value}\n", key.table, key.name),
            1 => format!("{}.{} = {value}\n", key.table, key.name),
            2 => format!("{} = {{ {} = {value} }}\n", key.table, key.name),
            _ => format!("{} = {value} # {}\n", key.name, key.what),
        };
        text.push_str(&line);
    }
    text
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let whole = write(&gapless::Tuning::default());
    let edges =
        "[host]\nfragment_bytes = 16777216\ndepth = 4096\nblock_ns = 0\nmapped_mb_s = 1e9\n";
    let odd = "[host]\nblock_ns = nan\n[hosts]\n\"a b\".c = [1, 2, { x = 1979-05-27 }]\n";
    let said: [(u8, &str); 5] = [
        (0, &whole),
        (0, "version = 2\n[later]\nthing = 'x'\n"),
        (1, edges),
        (1, odd),
        (2, "\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12"),
    ];
    said.iter().map(|(how, text)| [&[*how], text.as_bytes()].concat()).collect()
}
