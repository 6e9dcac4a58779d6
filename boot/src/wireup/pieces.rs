//! Values that are longer than a launcher carries, cut into pieces.
//!
//! ```text
//! key                  first piece: how many pieces there are, ':', and the value's beginning
//! key.1, key.2, …      the rest, in order
//! ```

use super::WireupError;

/// The most pieces of one value.
pub(super) const PIECES_MAX: usize = 4096;

/// Bytes of a first piece that tell how many pieces there are, at most.
const COUNT_BYTES: usize = "4096:".len();

/// The keys and texts under which `value` is published, none longer than `max` bytes.
///
/// # Errors
/// The value is too long for any number of pieces.
pub(super) fn cut(
    key: &str,
    value: &str,
    max: usize,
) -> Result<Vec<(String, String)>, WireupError> {
    let first = max.saturating_sub(COUNT_BYTES);
    let limit = first + max.saturating_mul(PIECES_MAX - 1);
    if !value.is_ascii() {
        return Err(WireupError::BadText { what: value.chars().take(80).collect() });
    }
    if first == 0 || value.len() > limit {
        let (what, len) = (format!("the value of {key}"), value.len());
        return Err(WireupError::TooLong { what, len, max: if first == 0 { 0 } else { limit } });
    }
    let (start, rest) = value.split_at(value.len().min(first));
    let count = 1 + rest.len().div_ceil(max);
    let mut pieces = vec![(key.to_owned(), format!("{count}:{start}"))];
    let mut rest = rest;
    for index in 1..count {
        let (piece, after) = rest.split_at(rest.len().min(max));
        pieces.push((piece_key(key, index), piece.to_owned()));
        rest = after;
    }
    Ok(pieces)
}

/// Joins the pieces of [`cut`], asking `get` for each.
///
/// # Errors
/// Those of `get`; pieces that [`cut`] never makes.
pub(super) fn join(
    from: u32,
    key: &str,
    mut get: impl FnMut(&str) -> Result<String, WireupError>,
) -> Result<String, WireupError> {
    let damaged = |text: &str| {
        let problem = format!("{:?}", text.chars().take(40).collect::<String>());
        WireupError::Damaged { from, key: key.to_owned(), problem }
    };
    let first = get(key)?;
    let (count, start) = first.split_once(':').ok_or_else(|| damaged(&first))?;
    let count = count.parse().ok().filter(|count| (1..=PIECES_MAX).contains(count));
    let count = count.ok_or_else(|| damaged(&first))?;
    (1..count).try_fold(start.to_owned(), |value, index| Ok(value + &get(&piece_key(key, index))?))
}

fn piece_key(key: &str, index: usize) -> String {
    format!("{key}.{index}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn get(store: &HashMap<String, String>) -> Result<String, WireupError> {
        join(3, "k", |key| {
            let missing = || WireupError::NoSuchKey { from: 3, key: key.to_owned() };
            store.get(key).cloned().ok_or_else(missing)
        })
    }

    #[test]
    fn values_of_every_length_survive() {
        let text = "0123456789abcdefghijklmnopqrstuvwxyz=:.".repeat(9);
        for max in [6, 7, 20, 63, 1023] {
            for len in 0..text.len() {
                let pieces = cut("k", &text[..len], max).unwrap();
                assert!(pieces.iter().all(|(_, piece)| piece.len() <= max && !piece.is_empty()));
                let store = pieces.into_iter().collect();
                assert_eq!(get(&store).unwrap(), text[..len], "{len} bytes in pieces of {max}");
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let long = "x".repeat(6 * PIECES_MAX);
        for max in [0, 5, 6] {
            let error = cut("k", &long, max).unwrap_err();
            assert!(matches!(error, WireupError::TooLong { .. }), "{max}");
        }
        assert!(matches!(cut("k", "é", 100), Err(WireupError::BadText { .. })));
    }

    #[test]
    fn damage_is_named() {
        for first in ["", "x", "0:x", "-1:x", "4097:x", "99999999999999999999:x", ":x"] {
            let store = [("k".to_owned(), first.to_owned())].into();
            assert!(matches!(get(&store), Err(WireupError::Damaged { from: 3, .. })), "{first}");
        }
        let store = [("k".to_owned(), "2:x".to_owned())].into();
        let missing = WireupError::NoSuchKey { from: 3, key: "k.1".to_owned() };
        assert_eq!(get(&store), Err(missing));
    }
}
