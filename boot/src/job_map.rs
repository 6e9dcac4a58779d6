//! The map of a job: the records of all its processes in one text, so that each process reads one instead of all.
//!
//! Rank 0 reads the records and writes the job map. Records repeat each other: what a process is (its kind) is usually
//! the same in all, the processors that it is bound to (its binding) are the same on each host, and many processes
//! share a host. So each of these three texts is written once, and ranks are runs of their numbers. If ranks are placed
//! regularly, the job map has a few words for each host and binding, however many ranks there are.
//!
//! ```text
//! kind/kind/…;binding/binding/…;host/host/…;run,run,…      run: kind.binding.host.ranks
//!                                                    a number with `+` rises by one with each rank of the run
//! ```

use crate::error::BootError;
use crate::process_record;
use std::collections::HashMap;
use std::fmt::Write;

/// Kind, binding and host.
const PARTS: usize = 3;
const KIND: usize = 0;
const BINDING: usize = 1;
const HOST: usize = 2;

/// The records of all processes of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobMap {
    /// The texts of each part, each once.
    texts: [Vec<String>; PARTS],
    /// By rank, which of them.
    ranks: Vec<[u32; PARTS]>,
}

/// Ranks in a row.
struct Run {
    first: [u32; PARTS],
    rises: [bool; PARTS],
    count: u32,
}

impl Run {
    fn parse(word: &str) -> Option<Run> {
        let mut words = word.split('.');
        let mut run = Run { first: [0; PARTS], rises: [false; PARTS], count: 0 };
        for part in 0..PARTS {
            let word = words.next()?;
            run.rises[part] = word.ends_with('+');
            run.first[part] = word.strip_suffix('+').unwrap_or(word).parse().ok()?;
        }
        run.count = words.next()?.parse().ok().filter(|&count| count > 0)?;
        words.next().is_none().then_some(run)
    }

    fn at(&self, nth: u32) -> Option<[u32; PARTS]> {
        let mut place = [0; PARTS];
        for (part, number) in place.iter_mut().enumerate() {
            let rise = if self.rises[part] { nth } else { 0 };
            *number = self.first[part].checked_add(rise)?;
        }
        Some(place)
    }
}

impl JobMap {
    /// Of these records, in the order of ranks.
    pub fn new<'c>(records: impl IntoIterator<Item = &'c str>) -> JobMap {
        let mut known: [HashMap<String, u32>; PARTS] = Default::default();
        let mut map = JobMap::default();
        for text in records {
            let mut place = [0; PARTS];
            for (part, word) in process_record::parts(text).into_iter().enumerate() {
                let texts = &mut map.texts[part];
                place[part] = *known[part].entry(word).or_insert_with_key(|word| {
                    texts.push(word.clone());
                    u32::try_from(texts.len() - 1).unwrap_or(u32::MAX)
                });
            }
            map.ranks.push(place);
        }
        map
    }

    /// As a word.
    pub fn write(&self) -> String {
        let mut text = self.texts.each_ref().map(|texts| texts.join("/")).join(";");
        let mut separator = ';';
        for run in self.runs() {
            text.push(separator);
            separator = ',';
            for part in 0..PARTS {
                let rises = if run.rises[part] { "+" } else { "" };
                // Writing to a string cannot fail.
                let _ = write!(text, "{}{rises}.", run.first[part]);
            }
            let _ = write!(text, "{}", run.count);
        }
        text
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for place in &self.ranks {
            if let Some(run) = runs.last_mut() {
                if run.count == 1 {
                    // The second one says which numbers rise.
                    run.rises = std::array::from_fn(|part| place[part] != run.first[part]);
                }
                if run.at(run.count) == Some(*place) {
                    run.count += 1;
                    continue;
                }
                if run.count == 1 {
                    run.rises = [false; PARTS];
                }
            }
            runs.push(Run { first: *place, rises: [false; PARTS], count: 1 });
        }
        runs
    }

    /// The reverse, for a job of `size`.
    ///
    /// # Errors
    /// It is no job map of so many ranks.
    pub fn read(text: &str, size: u32) -> Result<JobMap, BootError> {
        JobMap::parse(text, size).ok_or_else(|| process_record::bad(0, "job map", text))
    }

    fn parse(text: &str, size: u32) -> Option<JobMap> {
        let mut fields = text.split(';');
        let mut texts: [Vec<String>; PARTS] = Default::default();
        for texts in &mut texts {
            texts.extend(fields.next()?.split('/').map(str::to_owned));
        }
        let (runs, None) = (fields.next()?, fields.next()) else { return None };
        let mut ranks = Vec::new();
        for word in runs.split(',') {
            let run = Run::parse(word)?;
            if run.count > size.checked_sub(u32::try_from(ranks.len()).ok()?)? {
                return None;
            }
            for nth in 0..run.count {
                let place = run.at(nth)?;
                let known = |part: usize| (place[part] as usize) < texts[part].len();
                if !(0..PARTS).all(known) {
                    return None;
                }
                ranks.push(place);
            }
        }
        (ranks.len() == size as usize).then_some(JobMap { texts, ranks })
    }

    fn part(&self, part: usize, rank: u32) -> &str {
        let place = self.ranks.get(rank as usize);
        let text = place.and_then(|place| self.texts[part].get(place[part] as usize));
        text.map_or("", String::as_str)
    }

    /// What a process is.
    pub fn kind(&self, rank: u32) -> &str {
        self.part(KIND, rank)
    }

    /// The host that a process is on, as on its record.
    pub fn host(&self, rank: u32) -> &str {
        self.part(HOST, rank)
    }

    /// Each kind, with the first rank of it.
    pub fn kinds(&self) -> impl Iterator<Item = (u32, &str)> {
        let mut seen = vec![false; self.texts[KIND].len()];
        let ranks = (0u32..).zip(&self.ranks);
        let new = ranks
            .filter(move |(_, place)| !std::mem::replace(&mut seen[place[KIND] as usize], true));
        new.map(|(rank, place)| (rank, self.texts[KIND][place[KIND] as usize].as_str()))
    }

    /// All hosts.
    pub fn hosts(&self) -> &[String] {
        &self.texts[HOST]
    }

    /// All bindings.
    pub fn bindings(&self) -> &[String] {
        &self.texts[BINDING]
    }

    /// The number of each rank's host and of its binding, among all of them.
    pub fn places(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ranks.iter().map(|place| (place[HOST], place[BINDING]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(core: u32, host: u32) -> String {
        format!("wire-version:14,processors:{core:02x},host:boot-{host},network:able,socket:0")
    }

    fn map(ranks: u32, place: impl Fn(u32) -> (u32, u32)) -> JobMap {
        let records: Vec<String> = (0..ranks)
            .map(|rank| {
                let (core, host) = place(rank);
                record(core, host)
            })
            .collect();
        let map = JobMap::new(records.iter().map(String::as_str));
        for (rank, record) in (0..).zip(&records) {
            let words = |text: &str| -> std::collections::BTreeSet<String> {
                text.split(',').map(str::to_owned).collect()
            };
            let own = [map.kind(rank), map.part(BINDING, rank), map.host(rank)].join(",");
            assert_eq!(words(&own), words(record), "rank {rank}");
        }
        assert_eq!(JobMap::read(&map.write(), ranks).unwrap(), map);
        map
    }

    #[test]
    fn maps_survive_as_words_and_regular_ones_are_short() {
        let by_core = map(10_000, |rank| (rank % 100, rank / 100));
        let round = map(10_000, |rank| (rank / 100, rank % 100));
        let unbound = map(10_000, |rank| (0, rank / 100));
        for (map, most) in [(&by_core, 9_000), (&round, 9_000), (&unbound, 4_000)] {
            assert!(map.write().len() < most, "{} bytes", map.write().len());
        }
        assert_eq!(by_core.kinds().collect::<Vec<_>>().len(), 1);
        assert_eq!((by_core.hosts().len(), by_core.bindings().len()), (100, 100));
        // In no order at all.
        let mut state = 7u32;
        let mut any = vec![0; 500];
        for number in &mut any {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *number = state >> 16;
        }
        map(500, |rank| (any[rank as usize] % 7, any[rank as usize] % 11));
        map(1, |_| (3, 4));
    }

    #[test]
    fn what_is_no_map_is_refused() {
        let right = map(6, |rank| (rank % 3, rank / 3)).write();
        for size in [0, 5, 7] {
            assert!(JobMap::read(&right, size).is_err());
        }
        for wrong in [
            "",
            ";;;",
            "a;b;c",
            "a;b;c;",
            "a;b;c;0.0.0.0",
            "a;b;c;0.0.0",
            "a;b;c;0.0.0.6.1",
            "a;b;c;0.0.1.6",
            "a;b;c;0+.0.0.6",
            "a;b;c;0.0.0.6;x",
            "a;b;c;-1.0.0.6",
            "a;b;c;0.0.0.4294967295",
            "a;b;c;4294967295+.0.0.6",
            "a;b;c;0.0.0.5,0.0.0.2",
        ] {
            let error = JobMap::read(wrong, 6).expect_err(wrong);
            assert!(
                matches!(error, BootError::BadRecord { rank: 0, what: "job map", .. }),
                "{error}"
            );
        }
        for at in 0..right.len() {
            let mut bytes = right.clone().into_bytes();
            bytes[at] ^= 1;
            // Whatever it is now, it is read or refused.
            let _ = JobMap::read(&String::from_utf8_lossy(&bytes), 6);
        }
    }
}
