//! Which messages are measured: contiguous bytes of each size, or a layout's message of about each size.

use crate::failure::Failure;
use crate::selection::{Selection, contiguous, repeated};
use gapless_dtype::{Datatype, Primitive};
use gapless_layouts::{Case, Family, LayoutError, Side, cases_with, group_members};

/// Layouts are not tried at larger sizes.
const N_MAX: u64 = 1 << 24;

/// The messages of one layout, by length.
#[derive(Debug)]
pub(super) struct Series {
    /// Which layout; nothing for contiguous bytes.
    pub(super) layout: Option<String>,
    pub(super) cases: Vec<Case>,
}

/// A series of each layout that was chosen; of contiguous bytes, if none was.
///
/// With `--n`, and of a file's layout, it is the one message that they describe; else the largest that is not longer than
/// the size, of those whose n is a power of two. It is repeated as often as it fits the size. Sizes that are less than the
/// least message are left out. A group stands for each of its layouts; those that are longer than all sizes are named, and
/// left out.
pub(super) fn series(selection: &Selection, sizes: &[u64]) -> Result<Vec<Series>, Failure> {
    if selection.is_empty() {
        let cases = sizes.iter().map(|size| contiguous(*size)).collect();
        return Ok(vec![Series { layout: None, cases }]);
    }
    // Complains of what cannot be.
    selection.cases()?;
    let (mut all, mut too_long) = (Vec::new(), None);
    for (name, is_member) in names(selection) {
        let name = &name;
        let candidates = match selection.n() {
            Some(n) => vec![cases_with(name, Some(n), &selection.options())?],
            None => candidates(name, selection, sizes.last().copied().unwrap_or(0))?,
        };
        // One name may stand for several layouts.
        let several = candidates.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..several {
            let known: Vec<&Case> = candidates.iter().filter_map(|cases| cases.get(at)).collect();
            let layout = match (&known[..], several) {
                ([one], _) => one.name.clone(),
                (_, 1) => name.clone(),
                _ => format!("{name} {} of {several}", at + 1),
            };
            match one(layout.clone(), &known, sizes) {
                Err(error @ Failure::BadOption { .. }) if is_member => {
                    all.push(Series { layout: Some(left_out(&layout, &known)), cases: Vec::new() });
                    too_long = Some(error);
                }
                other => all.push(other?),
            }
        }
    }
    if let Some(error) = too_long.filter(|_| all.iter().all(|series| series.cases.is_empty())) {
        return Err(error);
    }
    let own = selection.own()?;
    for case in &own {
        all.push(one(case.name.clone(), &[case], sizes)?);
    }
    Ok(all)
}

/// The layouts that were chosen, each once, and whether it is a group's.
fn names(selection: &Selection) -> Vec<(String, bool)> {
    let mut all: Vec<(String, bool)> = Vec::new();
    let mut add = |name: &str, is_member| {
        if !all.iter().any(|(known, _)| known == name) {
            all.push((name.to_owned(), is_member));
        }
    };
    for name in selection.names() {
        match group_members(name) {
            // One number is the size of all.
            Some(members) if selection.n().is_none() => {
                members.into_iter().for_each(|member| add(member, true));
            }
            _ => add(name, false),
        }
    }
    all
}

/// What stands in the place of a series that has no message short enough.
fn left_out(layout: &str, known: &[&Case]) -> String {
    let least = known.iter().map(|case| case.payload_bytes).min().unwrap_or(0);
    format!("{layout}: left out, its least message has {least} bytes")
}

/// Messages of elements of a type, one behind the other.
pub(super) fn typed(primitive: Primitive, sizes: &[u64]) -> Result<Vec<Series>, Failure> {
    let element = elements(primitive);
    Ok(vec![one(element.name.clone(), &[&element], sizes)?])
}

/// One element of a type.
pub(super) fn elements(primitive: Primitive) -> Case {
    let side = Side {
        datatype: Datatype::from(primitive),
        count: 1,
        origin: 0,
        buffer_bytes: primitive.extent_bytes(),
    };
    Case {
        name: primitive.name().to_owned(),
        family: Family::Own,
        send: side.clone(),
        recv: side,
        payload_bytes: primitive.size_bytes(),
        expected_send_blocks: Some(1),
        expected_recv_blocks: Some(1),
    }
}

/// Messages of a name's layouts at all sizes that are powers of two, as far as they are not longer than `most`; those of
/// the default sizes, if there are none.
fn candidates(name: &str, selection: &Selection, most: u64) -> Result<Vec<Vec<Case>>, Failure> {
    let options = selection.options();
    let mut found = Vec::new();
    let powers = std::iter::successors(Some(1u64), |n| n.checked_mul(2));
    for n in powers.take_while(|n| *n <= N_MAX) {
        match cases_with(name, Some(n), &options) {
            Ok(cases) if cases.iter().all(|case| case.payload_bytes > most) => {
                // The least one says how long it is.
                if found.is_empty() {
                    found.push(cases);
                }
                break;
            }
            Ok(cases) => found.push(cases),
            Err(LayoutError::TooLarge { .. } | LayoutError::SizeOfMany { .. }) => break,
            Err(_) => {}
        }
    }
    if found.is_empty() {
        found.push(cases_with(name, None, &options)?);
    }
    Ok(found)
}

/// The series of one layout, out of its messages.
fn one(layout: String, known: &[&Case], sizes: &[u64]) -> Result<Series, Failure> {
    let of_size = |size: &u64| {
        let fitting = known.iter().filter(|case| case.payload_bytes <= *size);
        fitting.max_by_key(|case| case.payload_bytes).map(|case| (*case, *size))
    };
    let fitting = sizes.iter().filter_map(of_size);
    let cases: Vec<Case> = fitting
        .map(|(case, size)| repeated(case.clone(), "--message-size", size))
        .collect::<Result<_, _>>()?;
    if cases.is_empty() {
        let least = known.iter().map(|case| case.payload_bytes).min().unwrap_or(0);
        let most = sizes.last().copied().unwrap_or(0);
        return Err(Failure::BadOption {
            option: "--message-size",
            value: most.to_string(),
            why: format!("the least message of {layout} has {least} bytes"),
        });
    }
    Ok(Series { layout: Some(layout), cases })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    fn selected(words: &[&str]) -> Selection {
        let command = Selection::augment_args(Command::new("x").no_binary_name(true));
        Selection::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    fn bytes(words: &[&str], sizes: &[u64]) -> Vec<Vec<u64>> {
        let all = series(&selected(words), sizes).unwrap();
        let of = |series: Series| series.cases.iter().map(|case| case.payload_bytes).collect();
        all.into_iter().map(of).collect()
    }

    #[test]
    fn messages_have_about_the_size() {
        let sizes = [16, 1 << 10, 4 << 10, 32 << 10];
        assert_eq!(bytes(&[], &sizes), [sizes.to_vec()]);
        // 8 n² bytes; 32 KiB are n = 64.
        assert_eq!(bytes(&["-l", "v"], &sizes), [sizes.to_vec()]);
        let all = series(&selected(&["-l", "v"]), &sizes).unwrap();
        let names: Vec<&str> = all[0].cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["2 × V n=1", "2 × V n=8", "2 × V n=16", "V n=64"]);
        // One message, repeated; what is shorter is left out.
        assert_eq!(bytes(&["-l", "v", "--n", "10"], &sizes), [[800, 4000, 32_000]]);
        // Two depths of a face.
        assert_eq!(bytes(&["-l", "face-y"], &sizes).len(), 2);
        // Each layout of a group, each once.
        let names = |words: &[&str], sizes: &[u64]| -> Vec<String> {
            let all = series(&selected(words), sizes).unwrap();
            all.into_iter().filter_map(|series| series.layout).collect()
        };
        let all = names(&["-l", "all,v"], &[64 << 10]);
        assert!(all.len() > 30 && all.iter().filter(|name| *name == "v").count() == 1, "{all:?}");
        let is_left_out = |name: &&String| name.contains("left out, its least message has ");
        let long = all.iter().filter(is_left_out).count();
        assert!((1..all.len() / 2).contains(&long), "{all:?}");
        assert!(names(&["-l", "all"], &[64 << 20]).iter().all(|name| !is_left_out(&name)));
        // Sizes that are no numbers of cells: the default ones.
        for name in ["milc", "wrf", "contig"] {
            for of_one in bytes(&["-l", name], &[1 << 20]) {
                assert!(of_one.iter().all(|bytes| (1 << 19..=1 << 20).contains(bytes)), "{name}");
            }
        }
    }

    #[test]
    fn layouts_that_are_longer_than_all_sizes_are_refused_by_their_length() {
        let error = series(&selected(&["-l", "milc"]), &[8, 64]).unwrap_err().to_string();
        assert!(error.starts_with("--message-size 64: the least message of MILC "), "{error}");
        assert!(series(&selected(&["-l", "spiral"]), &[8]).is_err());
        assert!(series(&selected(&["-l", "v", "--n", "0"]), &[8]).is_err());
        assert!(series(&selected(&["--n", "5"]), &[8]).is_err());
    }
}
