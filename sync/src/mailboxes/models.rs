//! Every interleaving, and every reordering that the memory model allows, of what ranks do with mailboxes:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p gapless-sync --lib --release --target-dir target/loom mailboxes
//! ```
//!
//! Under loom an entry has one word of payload, and a rank two entries. What uses an entry's payload also uses a cell
//! beside it, in which loom sees every race: it never has a store overtake an earlier load, and so would not miss the
//! order that keeps an entry from being overwritten while it is read.
//!
//! Each weakening was made in the sources, one at a time, and the models named with it then failed:
//!
//! | weakened | fails |
//! |---|---|
//! | an entry's flag stored relaxed; read relaxed by `look` | `…_of_one_writer_…`, `…_of_all_…`, `…_no_sleeper_…` |
//! | `done` stored relaxed; read relaxed | `…_of_one_writer_…` |
//! | `blocked_by`: a round too early by one | `…_of_one_writer_…` |
//! | a report stored relaxed; read relaxed by `reached` | `…_what_was_done_before_a_report_…` |
//! | the fence of `excuse`, or that of `was_excused`, left out | `…_what_is_overwritten_…` |
//! | the hurried fence, or the patient one, left out | `…_no_sleeper_…`, `…_no_writer_…` |

use super::*;
use loom::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

const RANKS: usize = 2;

struct Shared {
    words: Vec<AtomicU64>,
    /// A cell for each entry.
    users: Vec<Cell<()>>,
    /// A wake-up that is on its way to rank 1.
    wakeup: AtomicBool,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            words: (0..Mailboxes::words(RANKS)).map(|_| AtomicU64::new(0)).collect(),
            users: (0..RANKS * DEPTH).map(|_| Cell::new(())).collect(),
            wakeup: AtomicBool::new(false),
        })
    }

    fn mailboxes(&self) -> Mailboxes<'_> {
        Mailboxes::new(&self.words, RANKS).unwrap()
    }

    /// To loom, a plain store might come before what the swap that did not see it has written.
    fn wake(&self) {
        self.wakeup.swap(true, Ordering::AcqRel);
    }

    fn publish(&self, mailbox: &mut Mailbox, value: u64, readers: Readers) {
        while mailbox.blocked_by(&self.mailboxes()).is_some() {
            thread::yield_now();
        }
        self.users[mailbox.local_rank * DEPTH + place(mailbox.round)].set(());
        mailbox.publish(&self.mailboxes(), 1, &value.to_ne_bytes(), readers);
    }

    fn read(&self, mailbox: &Mailbox, rank: usize) -> u64 {
        self.users[rank * DEPTH + place(mailbox.round)].get();
        let mut bytes = [0; 8];
        mailbox.read(&self.mailboxes(), rank, 0, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn take(&self, mailbox: &mut Mailbox, rank: usize) -> u64 {
        while mailbox.look(&self.mailboxes(), rank).unwrap().is_none() {
            thread::yield_now();
        }
        self.read(mailbox, rank)
    }
}

fn mailbox(rank: usize) -> Mailbox {
    Mailbox::new(rank, RANKS, Fences::Symmetric)
}

/// One rank publishes in each of three rounds, which is one more than it has places; the other reads, and says so.
#[test]
fn mailboxes_entries_of_one_writer_are_read_before_they_are_overwritten() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let writer = thread::spawn(move || {
            let mut mailbox = mailbox(0);
            for value in 1..=3 {
                other.publish(&mut mailbox, value, Readers::One(1));
                mailbox.begin(value);
            }
        });
        let mut mailbox = mailbox(1);
        for value in 1..=3 {
            assert_eq!(shared.take(&mut mailbox, 0), value);
            mailbox.begin(value);
            mailbox.finish(&shared.mailboxes());
        }
        writer.join().unwrap();
    });
}

/// Both publish in three rounds and read the other's entry: nobody says that it is done, for its next entry does.
#[test]
fn mailboxes_entries_of_all_say_that_those_before_were_read() {
    fn play(shared: &Shared, me: usize) {
        let mut mailbox = mailbox(me);
        for round in 1..=3 {
            shared.publish(&mut mailbox, 10 * round + me as u64, Readers::All);
            assert_eq!(shared.take(&mut mailbox, 1 - me), 10 * round + 1 - me as u64);
            mailbox.all_began(mailbox.round());
            mailbox.begin(round);
        }
    }
    let mut explored = loom::model::Builder::new();
    explored.preemption_bound = Some(3);
    explored.check(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || play(&other, 0));
        play(&shared, 1);
        thread.join().unwrap();
    });
}

/// Rank 1 falls asleep for each of two entries, so that a wake-up of the first sleep may come late. If nothing wakes
/// it, the entry was there when it looked a last time.
#[test]
fn mailboxes_no_sleeper_misses_a_note() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let mut writer = Some(thread::spawn(move || {
            let mut mailbox = mailbox(0);
            for value in 1..=2 {
                other.publish(&mut mailbox, value, Readers::One(1));
                mailbox.wake(&other.mailboxes(), Readers::One(1), |rank| {
                    assert_eq!(rank, 1);
                    other.wake();
                });
                mailbox.begin(value);
            }
        }));
        let mut mailbox = mailbox(1);
        for value in 1..=2 {
            loop {
                assert!(mailbox.arm(&shared.mailboxes(), Awaited::Entry(0)));
                if mailbox.look(&shared.mailboxes(), 0).unwrap().is_some() {
                    break;
                }
                if shared.wakeup.swap(false, Ordering::AcqRel) {
                    continue;
                }
                let writer = writer.take().expect("who is woken after all was written finds it");
                writer.join().unwrap();
                assert!(shared.wakeup.swap(false, Ordering::AcqRel), "slept through entry {value}");
            }
            mailbox.disarm(&shared.mailboxes());
            assert_eq!(shared.read(&mailbox, 0), value);
            mailbox.begin(value);
        }
        writer.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

/// Rank 0 has no place left and falls asleep until rank 1 has read.
#[test]
fn mailboxes_no_writer_misses_that_it_was_read() {
    loom::model(|| {
        let shared = Shared::new();
        let mut writer = mailbox(0);
        for value in 1..=2 {
            shared.publish(&mut writer, value, Readers::One(1));
            writer.begin(value);
        }
        let other = shared.clone();
        let reader = thread::spawn(move || {
            let mut mailbox = mailbox(1);
            assert_eq!(other.take(&mut mailbox, 0), 1);
            mailbox.begin(1);
            mailbox.finish(&other.mailboxes());
            mailbox.wake(&other.mailboxes(), Readers::All, |_| other.wake());
        });
        assert!(writer.arm(&shared.mailboxes(), Awaited::Reader(1)));
        let room = writer.blocked_by(&shared.mailboxes()).is_none();
        reader.join().unwrap();
        assert!(room || shared.wakeup.load(Ordering::Acquire), "slept although it was read");
        assert_eq!(writer.blocked_by(&shared.mailboxes()), None);
        writer.disarm(&shared.mailboxes());
        shared.publish(&mut writer, 3, Readers::One(1));
    });
}

/// Rank 0 fills memory and reports; rank 1 reads it, reports, and rank 0 fills it again.
#[test]
fn mailboxes_what_was_done_before_a_report_is_seen_after_it() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let wait = |mailbox: &mut Mailbox, shared: &Shared, rank: usize, moment: Moment| {
            while !mailbox.reached(&shared.mailboxes(), rank, moment) {
                thread::yield_now();
            }
        };
        let writer = thread::spawn(move || {
            let mut mailbox = mailbox(0);
            other.users[0].set(());
            mailbox.report(&other.mailboxes(), Moment::new(2, 1));
            wait(&mut mailbox, &other, 1, Moment::new(2, 3));
            other.users[0].set(());
        });
        let mut mailbox = mailbox(1);
        wait(&mut mailbox, &shared, 0, Moment::new(2, 1));
        shared.users[0].get();
        mailbox.report(&shared.mailboxes(), Moment::last(2));
        writer.join().unwrap();
    });
}

/// Rank 0 has given up rank 1, which lives, and publishes in the place of an entry that rank 1 reads.
#[test]
fn mailboxes_who_reads_what_is_overwritten_finds_out() {
    loom::model(|| {
        let shared = Shared::new();
        let mut writer = mailbox(0);
        writer.publish(&shared.mailboxes(), 1, &1u64.to_ne_bytes(), Readers::One(1));
        let other = shared.clone();
        let writer = thread::spawn(move || {
            writer.begin(DEPTH as u64);
            assert_eq!(writer.blocked_by(&other.mailboxes()), Some(1));
            writer.excuse(&other.mailboxes(), 1);
            writer.publish(&other.mailboxes(), 1, &2u64.to_ne_bytes(), Readers::One(1));
        });
        let mut mailbox = mailbox(1);
        if mailbox.look(&shared.mailboxes(), 0).unwrap().is_some() {
            let mut bytes = [0; 8];
            mailbox.read(&shared.mailboxes(), 0, 0, &mut bytes);
            let found = u64::from_ne_bytes(bytes);
            assert!(found == 1 || mailbox.was_excused(&shared.mailboxes(), 0..1) == Some(0));
        }
        writer.join().unwrap();
    });
}
