//! Each book is a process: locks of one that was opened again do not care whose they are. One test has a real process,
//! and kills it.

use super::book::Book;
use super::*;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const GPU: Uuid = [7; 16];

fn stream(blocks: u32) -> Ask {
    Ask { holder: Holder::Stream, blocks, room: 132, together: true, handed: 0 }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn process(folder: &tempfile::TempDir) -> Arc<Book> {
    Arc::new(Book::at(Some(folder.path().to_owned())))
}

fn reserve(book: &Arc<Book>, ask: Ask) -> Result<Reservation, LedgerError> {
    Reservation::among(Arc::clone(book), GPU, ask)
}

/// Of each process with something, the blocks.
fn blocks(book: &Book) -> Vec<u32> {
    let of = |holding: Holding| holding.claims.iter().map(|claim| claim.blocks).sum();
    let mut all: Vec<u32> = book.census(GPU).unwrap().into_iter().map(of).collect();
    all.sort_unstable();
    all
}

#[test]
fn all_processes_take_from_one_gpu_and_give_back() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| process(&folder));
    let mut first = reserve(&one, stream(64)).unwrap();
    let second = reserve(&two, stream(64)).unwrap();
    assert_eq!([blocks(&one), blocks(&two)], [[64, 64]; 2]);
    let refused = reserve(&one, stream(8)).unwrap_err();
    assert_eq!(refused, LedgerError::NoRoom { wanted: 136, room: 132, others: 64 });
    assert_eq!(refused.to_string().matches("136").count(), 1);
    let elsewhere = Reservation::among(Arc::clone(&two), [8; 16], stream(132)).unwrap();
    assert_eq!(elsewhere.blocks, 132);
    first.shrink(60);
    first.shrink(100);
    let third = reserve(&two, stream(8)).unwrap();
    assert_eq!(two.own_blocks(GPU), 72);
    assert_eq!(blocks(&one), [60, 72]);
    drop((first, second, third, elsewhere));
    assert_eq!(blocks(&one), []);
    drop((one, two));
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert!(left.iter().all(|path| path.extension().is_some_and(|end| end == "lock")), "{left:?}");
}

#[test]
fn blocks_of_several_kinds_fit_where_as_many_of_the_largest_do() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| process(&folder));
    let worker = Ask { holder: Holder::Worker, room: 2112, ..stream(1) };
    let large = reserve(&one, stream(131)).unwrap();
    let last = reserve(&two, worker).unwrap();
    let refused = reserve(&two, worker).unwrap_err();
    assert_eq!(refused, LedgerError::NoRoom { wanted: 133, room: 132, others: 131 });
    drop(large);
    let more = reserve(&two, Ask { blocks: 2000, ..worker }).unwrap();
    let refused = reserve(&one, stream(1)).unwrap_err();
    assert_eq!(refused, LedgerError::NoRoom { wanted: 2002, room: 132, others: 2001 });
    drop((last, more));
    // What has no blocks takes no room.
    let none = reserve(&two, Ask { room: 1, ..stream(0) }).unwrap();
    assert!(reserve(&one, stream(132)).is_ok());
    drop(none);
}

#[test]
fn processes_that_take_turns_do_not_count_each_other() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| process(&folder));
    let turns = Ask { together: false, ..stream(100) };
    let _first = reserve(&one, turns).unwrap();
    let _second = reserve(&two, turns).unwrap();
    let refused = reserve(&two, turns).unwrap_err();
    assert_eq!(refused, LedgerError::NoRoom { wanted: 200, room: 132, others: 0 });
    // Nor does one that is in the service with others count them.
    let third = process(&folder);
    assert!(reserve(&third, stream(132)).is_ok());
}

#[test]
fn what_is_handed_over_is_waited_for() {
    let folder = folder();
    let [one, two, three] = [(); 3].map(|()| process(&folder));
    // Two ranks of 60: the first reserves for both.
    let mut first = reserve(&one, Ask { handed: 60, ..stream(120) }).unwrap();
    let _second = Reservation::handed(Arc::clone(&two), GPU, stream(60)).unwrap();
    assert_eq!(blocks(&three), [60, 120], "for a while more than there is");
    std::thread::scope(|scope| {
        let third = scope.spawn(|| reserve(&three, stream(12)));
        // Longer than what is merely full is waited for.
        std::thread::sleep(std::time::Duration::from_millis(300));
        first.shrink(60);
        assert_eq!(third.join().unwrap().map(|third| third.blocks), Ok(12));
    });
    // Of two threads of one process likewise.
    let _more = Reservation::handed(Arc::clone(&one), [9; 16], stream(1)).unwrap();
    let mut all =
        Reservation::among(Arc::clone(&one), [9; 16], Ask { handed: 65, ..stream(130) }).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| Reservation::among(Arc::clone(&one), [9; 16], stream(60)));
        std::thread::sleep(std::time::Duration::from_millis(50));
        all.shrink(65);
        assert!(other.join().unwrap().is_ok());
    });
}

/// What a child that was forked meanwhile still has is not locked.
#[test]
fn the_ledger_is_unlocked_for_all_who_have_it_open() {
    let folder = folder();
    let [one, two] = [(); 2].map(|()| process(&folder));
    let locked = one.lock(&GPU).unwrap();
    let child = locked.0.as_ref().unwrap().try_clone().unwrap();
    drop(locked);
    assert!(reserve(&two, stream(1)).is_ok());
    drop(child);
}

#[test]
fn what_cannot_be_written_down_is_refused() {
    let folder = folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let book = Arc::new(Book::at(Some(file)));
    let refused =
        [reserve(&book, stream(1)), Reservation::handed(Arc::clone(&book), GPU, stream(1))];
    for refused in refused {
        assert!(matches!(refused, Err(LedgerError::Unwritable { .. })), "{refused:?}");
    }
    assert!(book.census(GPU).is_err());
    assert_eq!(book.own_blocks(GPU), 0);
}

#[test]
fn of_many_that_want_the_last_blocks_as_many_get_them_as_fit() {
    let folder = folder();
    let got = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let book = process(&folder);
                let mine: Vec<_> = (0..8).map_while(|_| reserve(&book, stream(11)).ok()).collect();
                got.fetch_add(u32::try_from(mine.len()).unwrap(), Ordering::Relaxed);
                // Nobody gives back before all have tried.
                std::mem::forget(mine);
                std::mem::forget(book);
            });
        }
    });
    assert_eq!(got.into_inner(), 12);
}

/// Not a test: what the next one starts and kills.
#[test]
fn a_process_that_is_killed_with_its_blocks() {
    let Some(folder) = std::env::var_os("GAPLESS_TEST_LEDGER") else { return };
    let book = Arc::new(Book::at(Some(PathBuf::from(folder))));
    let _all = reserve(&book, stream(132)).unwrap();
    println!("\nit has them");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn blocks_of_a_process_that_was_killed_are_free() {
    let folder = folder();
    let book = process(&folder);
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .args(["--exact", "ledger::tests::a_process_that_is_killed_with_its_blocks", "--nocapture"])
        .env("GAPLESS_TEST_LEDGER", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "it has them"));
    let found = book.census(GPU).unwrap();
    assert_eq!(found, [Holding { process: child.id(), claims: vec![stream(132)] }]);
    assert!(matches!(reserve(&book, stream(1)), Err(LedgerError::NoRoom { others: 132, .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(blocks(&book), []);
    assert!(reserve(&book, stream(132)).is_ok());
}

#[test]
fn files_that_make_no_sense_and_folders_that_are_gone_do_no_harm() {
    let folder = folder();
    let nested = folder.path().join("mine");
    let book = Arc::new(Book::at(Some(nested.clone())));
    let mut kept = reserve(&book, stream(10)).unwrap();
    let name = "07".repeat(16);
    let stray = nested.join(format!("{name}.99-0"));
    let odd =
        "process 9\nstream 5 132 together 0\nagent 7 7 alone 0\nworker -1 2 alone 0\nstream 1\n";
    for text in ["", "process x\n", odd] {
        std::fs::write(&stray, text).unwrap();
        let file = std::fs::File::open(&stray).unwrap();
        file.try_lock().unwrap();
        let wanted: &[u32] = if text.len() > 20 { &[5, 10] } else { &[10] };
        assert_eq!(blocks(&book), wanted);
        // Another test's child, which has not called `exec` yet, holds the lock, too.
        file.unlock().unwrap();
    }
    // Somebody cleans up: what is reserved from then on is seen.
    std::fs::remove_dir_all(&nested).unwrap();
    kept.shrink(9);
    let other = Book::at(Some(nested.clone()));
    assert_eq!(blocks(&other), [9]);
    // Without a folder, a process counts what it has itself.
    let alone = Arc::new(Book::at(None));
    let _own = reserve(&alone, stream(100)).unwrap();
    let refused = reserve(&alone, stream(100)).unwrap_err();
    assert_eq!(refused, LedgerError::NoRoom { wanted: 200, room: 132, others: 0 });
}

#[test]
fn a_ledger_that_is_never_unlocked_is_an_error() {
    let folder = folder();
    let book = process(&folder);
    drop(reserve(&book, stream(1)).unwrap());
    let lock =
        std::fs::File::open(folder.path().join(format!("{}.lock", "07".repeat(16)))).unwrap();
    lock.try_lock().unwrap();
    let busy = reserve(&book, stream(1)).unwrap_err();
    assert!(matches!(&busy, LedgerError::Busy { .. }), "{busy}");
    drop(lock);
    assert!(reserve(&book, stream(1)).is_ok());
}
