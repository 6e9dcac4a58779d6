//! What the members of a communicator to be tell each other, and what follows from it: pure, and
//! the same in every member.

use crate::comm::group::Group;
use crate::comm::{Comm, IDS_END};
use crate::error::PmlError;
use zerocopy::little_endian::{I32, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Marks a process that had no identifier left.
pub(super) const NO_ID: u32 = u32::MAX;

/// What one member tells.
///
/// ```text
/// 0         4    8        12     16      20    24
/// | process | id | its id | key  | color | how |
///   u32       u32  u32      i32    u32     u32
/// ```
///
/// `id` is what the process calls the new communicator, `its id` its side of an intercommunicator.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(super) struct TableEntry {
    pub(super) process: U32,
    pub(super) id: U32,
    pub(super) side: U32,
    pub(super) key: I32,
    pub(super) color: U32,
    /// [`TableEntry::COLORED`], [`TableEntry::HIGH`].
    pub(super) how: U32,
}

/// Length of an entry, in bytes.
pub(super) const ENTRY_BYTES: usize = 24;
const _: () = assert!(size_of::<TableEntry>() == ENTRY_BYTES);

impl TableEntry {
    /// Of a process that calls the new communicator `id`.
    pub(super) fn of(process: u32, id: u32) -> TableEntry {
        let (color, how) = (0.into(), 0.into());
        TableEntry {
            process: process.into(),
            id: id.into(),
            side: NO_ID.into(),
            key: 0.into(),
            color,
            how,
        }
    }

    /// It has a color.
    pub(super) const COLORED: u32 = 1;
    /// Its side comes last.
    pub(super) const HIGH: u32 = 2;

    fn color(&self) -> Option<u32> {
        (self.how.get() & TableEntry::COLORED != 0).then_some(self.color.get())
    }
}

/// What comes before the table: how it went at the leader of a side.
///
/// ```text
/// 0         4         8       12       16
/// | failed? | culprit | local | remote |
/// ```
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(super) struct Preface {
    failed: U32,
    culprit: U32,
    local: U32,
    remote: U32,
}

/// Length of a preface, in bytes.
pub(super) const PREFACE_BYTES: usize = 16;
const _: () = assert!(size_of::<Preface>() == PREFACE_BYTES);

impl Preface {
    /// So many entries of this side and of the other follow.
    pub(super) fn fine(local: usize, remote: usize) -> Preface {
        let count = |len: usize| U32::new(u32::try_from(len).expect("a group has 32-bit ranks"));
        Preface { failed: 0.into(), culprit: 0.into(), local: count(local), remote: count(remote) }
    }

    /// Nothing follows: this process was lost.
    pub(super) fn failed(culprit: u32) -> Preface {
        Preface { failed: 1.into(), culprit: culprit.into(), local: 0.into(), remote: 0.into() }
    }

    /// How many entries follow of each side (at most `most` each), or who was lost.
    pub(super) fn read(bytes: &[u8], most: u32) -> Result<Result<(usize, usize), u32>, String> {
        let told = Preface::read_from_bytes(bytes).map_err(|_| "half an answer".to_owned())?;
        match told.failed.get() {
            0 if told.local.get() <= most && told.remote.get() <= most => {
                Ok(Ok((told.local.get() as usize, told.remote.get() as usize)))
            }
            1 if told.culprit.get() < most => Ok(Err(told.culprit.get())),
            _ => Err(format!("an answer that makes no sense: {told:?}")),
        }
    }
}

/// The entries in `bytes`.
pub(super) fn entries(bytes: &[u8]) -> Result<&[TableEntry], String> {
    <[TableEntry]>::ref_from_bytes(bytes).map_err(|_| "half an entry of a table".to_owned())
}

/// What is made.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// The same again.
    Dup,
    /// One for each color, ordered by key.
    Split,
    /// Of those who take part.
    Group,
    /// Of two sides.
    Inter,
    /// Of both sides of an intercommunicator.
    Merge,
}

/// Whether a table is what it must be: the members of this side in their order, `mine` as it was
/// told, and non-members on the other side who are in the job, each once.
pub(super) fn check(
    local: &[TableEntry],
    remote: &[TableEntry],
    members: &Group,
    mine: &TableEntry,
    job: u32,
) -> Result<(), String> {
    let told = local.iter().map(|entry| entry.process.get());
    if !told.eq(members.processes()) || !local.contains(mine) {
        return Err("a table of other processes".to_owned());
    }
    let others = Group::listed(remote.iter().map(|entry| entry.process.get()));
    if others.size() as usize != remote.len()
        || others.processes().any(|process| process >= job || members.rank_of(process).is_some())
    {
        return Err("another side that cannot be".to_owned());
    }
    let fits = |id: u32| id < IDS_END || id == NO_ID;
    if !local.iter().chain(remote).all(|e| fits(e.id.get()) && fits(e.side.get())) {
        return Err("an impossible identifier".to_owned());
    }
    Ok(())
}

/// Those who asked for `color`, by key, and by rank where keys are equal.
fn colored(side: &[TableEntry], color: u32) -> Vec<TableEntry> {
    let mut chosen: Vec<TableEntry> =
        side.iter().filter(|entry| entry.color() == Some(color)).copied().collect();
    chosen.sort_by_key(|entry| entry.key.get());
    chosen
}

fn group(side: &[TableEntry]) -> Group {
    Group::listed(side.iter().map(|entry| entry.process.get()))
}

fn ids(side: &[TableEntry]) -> Vec<u32> {
    side.iter().map(|entry| entry.id.get()).collect()
}

/// The communicator that a table makes; `None` if this process is in none.
pub(super) fn conclude(
    purpose: &Purpose,
    over: &Comm,
    (local, remote): (&[TableEntry], &[TableEntry]),
    mine: &TableEntry,
) -> Result<Option<Comm>, PmlError> {
    // Who asks for none needs no identifier.
    let is_asked =
        |entry: &TableEntry| !matches!(purpose, Purpose::Split) || entry.color().is_some();
    let exhausted =
        |side: &[TableEntry]| side.iter().any(|it| it.id.get() == NO_ID && is_asked(it));
    if exhausted(local) || exhausted(remote) {
        return Err(PmlError::TooManyComms { max: crate::comm::COMMS_MAX });
    }
    let (local, remote): (Vec<TableEntry>, Vec<TableEntry>) = match purpose {
        Purpose::Split => {
            let Some(color) = mine.color() else { return Ok(None) };
            (colored(local, color), colored(remote, color))
        }
        Purpose::Merge => {
            let high =
                |side: &[TableEntry]| side.iter().any(|e| e.how.get() & TableEntry::HIGH != 0);
            // Where both sides want the same, the side of the first process of the job comes first.
            let first = |side: &[TableEntry]| side.iter().map(|entry| entry.process.get()).min();
            let last = match (high(local), high(remote)) {
                (mine, theirs) if mine != theirs => mine,
                _ => first(local) > first(remote),
            };
            let (low, high) = if last { (remote, local) } else { (local, remote) };
            ([low, high].concat(), Vec::new())
        }
        _ => (local.to_vec(), remote.to_vec()),
    };
    let inter = match purpose {
        Purpose::Inter => true,
        Purpose::Merge => false,
        _ => mine.side.get() != NO_ID,
    };
    if inter && remote.is_empty() {
        // No intercommunicator has a side without members.
        return Ok(None);
    }
    let members = match purpose {
        Purpose::Dup => over.group(),
        _ => group(&local),
    };
    let rank = members.rank_of(mine.process.get());
    let rank = rank.ok_or(PmlError::Bug { what: "a member of a group that it is not in" })?;
    if !inter {
        return Ok(Some(Comm::intra(mine.id.get(), rank, members, ids(&local))));
    }
    let sides = local.iter().map(|entry| entry.side.get()).collect();
    let side = Comm::intra(mine.side.get(), rank, members, sides);
    Ok(Some(Comm::inter(mine.id.get(), side, group(&remote), ids(&remote))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(process: u32, key: i32, color: Option<u32>) -> TableEntry {
        TableEntry {
            process: process.into(),
            id: (100 + process).into(),
            side: NO_ID.into(),
            key: key.into(),
            color: color.unwrap_or(0).into(),
            how: if color.is_some() { TableEntry::COLORED } else { 0 }.into(),
        }
    }

    fn made(
        purpose: &Purpose,
        local: &[TableEntry],
        remote: &[TableEntry],
        at: usize,
    ) -> Option<Comm> {
        conclude(purpose, &Comm::world(0, 9), (local, remote), &local[at]).unwrap()
    }

    #[test]
    fn colors_and_keys_decide() {
        let table = [(3, Some(1)), (-1, Some(1)), (0, None), (3, Some(1)), (9, Some(2))];
        let table: Vec<TableEntry> = (0..).zip(table).map(|(p, (k, c))| entry(p, k, c)).collect();
        let one = made(&Purpose::Split, &table, &[], 3).unwrap();
        assert_eq!(one.group().processes().collect::<Vec<_>>(), [1, 0, 3]);
        assert_eq!((one.rank(), one.id(), one.context_at(0)), (2, 103, 2 * 101));
        assert!(made(&Purpose::Split, &table, &[], 2).is_none());
        assert_eq!(made(&Purpose::Split, &table, &[], 4).unwrap().size(), 1);
    }

    #[test]
    fn sides_are_merged_as_they_ask() {
        let (mut a, mut b) = ([entry(4, 0, None), entry(1, 0, None)], [entry(2, 0, None)]);
        let order = |a: &[TableEntry], b: &[TableEntry]| {
            let (one, two) = (made(&Purpose::Merge, a, b, 0), made(&Purpose::Merge, b, a, 0));
            let list = |comm: Option<Comm>| comm.unwrap().group().processes().collect::<Vec<_>>();
            let one = list(one);
            assert_eq!(one, list(two));
            one
        };
        assert_eq!(order(&a, &b), [4, 1, 2]);
        a.iter_mut().for_each(|entry| entry.how = TableEntry::HIGH.into());
        assert_eq!(order(&a, &b), [2, 4, 1]);
        b[0].how = TableEntry::HIGH.into();
        assert_eq!(order(&a, &b), [4, 1, 2]);
    }

    #[test]
    fn a_table_that_cannot_be_is_refused() {
        let members = Group::listed([3, 5]);
        let table = [entry(3, 0, None), entry(5, 0, None)];
        let right = |local: &[TableEntry], remote: &[TableEntry]| {
            check(local, remote, &members, &table[1], 8)
        };
        assert_eq!(right(&table, &[entry(7, 0, None)]), Ok(()));
        assert!(right(&[table[1], table[0]], &[]).is_err());
        assert!(right(&table[..1], &[]).is_err());
        assert!(right(&[table[0], entry(5, 1, None)], &[]).is_err());
        for non_members in [vec![8], vec![5], vec![1, 1]] {
            let non_members: Vec<TableEntry> =
                non_members.into_iter().map(|p| entry(p, 0, None)).collect();
            assert!(right(&table, &non_members).is_err(), "{non_members:?}");
        }
        let mut wild = entry(7, 0, None);
        wild.id = IDS_END.into();
        assert!(right(&table, &[wild]).is_err());
        wild.id = NO_ID.into();
        assert_eq!(right(&table, &[wild]), Ok(()));
        let full = conclude(&Purpose::Inter, &Comm::world(0, 9), (&table, &[wild]), &table[0]);
        assert!(matches!(full, Err(PmlError::TooManyComms { .. })));
        // A split of one who asks for none, and one who asks.
        let split = |wild: TableEntry| {
            conclude(&Purpose::Split, &Comm::world(0, 9), (&table, &[wild]), &table[0])
        };
        assert!(matches!(split(wild), Ok(None)));
        wild.how = TableEntry::COLORED.into();
        assert!(matches!(split(wild), Err(PmlError::TooManyComms { .. })));
        assert_eq!(Preface::read(Preface::fine(2, 1).as_bytes(), 8), Ok(Ok((2, 1))));
        assert_eq!(Preface::read(Preface::failed(7).as_bytes(), 8), Ok(Err(7)));
        assert!(Preface::read(Preface::fine(9, 1).as_bytes(), 8).is_err());
        assert!(Preface::read(Preface::failed(8).as_bytes(), 8).is_err());
        assert!(Preface::read(&[0; 15], 8).is_err());
    }
}
