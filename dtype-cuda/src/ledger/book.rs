//! The ledger as one process has it: what it has reserved, and the files in which processes tell each other.
//!
//! ```text
//! /dev/shm/gapless-gpu-UID/       0700, this user's
//!     UUID.lock                   locked while a process looks and writes
//!     UUID.PROCESS-N              what a process has reserved, locked as long as it has something:
//!                                     process 4242
//!                                     stream 64 264 together 0     64 blocks; the GPU holds 264 such blocks; kernels of
//!                                                                  others run there; none is handed over
//!                                     worker 1 2112 alone 0
//! ```
//!
//! Locks are those of `flock(2)`: they belong to an open file, and end when they are undone or with the last process that
//! has the file, forked ones included. Somebody may empty the folder, so a file is known by its number, not by its name.

use super::{Ask, Claim, Holder, Holding, LedgerError, Uuid};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Only a process that was stopped keeps the ledger for longer.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for room that others may be about to give back.
const ROOM_PATIENCE: Duration = Duration::from_millis(100);
/// The same while blocks are handed over, which takes two exchanges among all ranks of a communicator.
const HANDED_PATIENCE: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(2);
/// Bytes of another's file that are read at most.
const FILE_MAX: u64 = 1 << 16;

/// What this process has reserved on one GPU.
#[derive(Debug, Default)]
struct Row {
    claims: Vec<(u64, Claim)>,
    /// Its file, locked, and where it is.
    file: Option<(File, PathBuf)>,
}

/// The ledger as one process has it.
#[derive(Debug)]
pub(super) struct Book {
    folder: Option<PathBuf>,
    rows: Mutex<(u64, HashMap<Uuid, Row>)>,
}

/// What is counted.
struct Count {
    blocks: u32,
    room: u32,
    handed: u32,
}

impl Count {
    fn add<'c>(self, claims: impl Iterator<Item = &'c Claim>) -> Count {
        claims.fold(self, |count, claim| Count {
            blocks: count.blocks.saturating_add(claim.blocks),
            room: if claim.blocks > 0 { count.room.min(claim.room) } else { count.room },
            handed: count.handed.saturating_add(claim.handed),
        })
    }
}

impl Book {
    /// That of this user; without a folder, if there can be none.
    pub(super) fn of_this_user() -> Book {
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        let name = format!("gapless-gpu-{}", rustix::process::geteuid().as_raw());
        for place in places {
            match own_folder(&place.join(&name)) {
                Ok(folder) => return Book::at(Some(folder)),
                Err(error) => {
                    tracing::debug!(place = %place.display(), %error, "no ledger of GPUs here")
                }
            }
        }
        tracing::warn!("no folder for the ledger of GPUs: this process counts its blocks alone");
        Book::at(None)
    }

    pub(super) fn at(folder: Option<PathBuf>) -> Book {
        Book { folder, rows: Mutex::default() }
    }

    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn rows(&self) -> MutexGuard<'_, (u64, HashMap<Uuid, Row>)> {
        // Consistent between any two statements.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves, if there is room; the number of the reservation.
    pub(super) fn reserve(&self, uuid: Uuid, ask: Ask) -> Result<u64, LedgerError> {
        let began = Instant::now();
        loop {
            let (refused, handed) = {
                let (next, rows) = &mut *self.rows();
                let row = rows.entry(uuid).or_default();
                let _locked = self.lock(&uuid)?;
                let earlier = row.claims.iter().map(|(_, claim)| claim);
                let own = Count { blocks: 0, room: u32::MAX, handed: 0 }.add(earlier);
                let own = own.add(std::iter::once(&Claim { handed: 0, ..ask }));
                let own_blocks = own.blocks;
                let others = if ask.together { self.others(&uuid, row)? } else { Vec::new() };
                let others = others.iter().flat_map(|holding| &holding.claims);
                let all = own.add(others.filter(|claim| claim.together));
                if all.blocks <= all.room {
                    return self.enter(&uuid, next, row, ask);
                }
                let (wanted, room) = (all.blocks, all.room);
                let others = wanted - own_blocks;
                (LedgerError::NoRoom { wanted, room, others }, all.handed)
            };
            let patience = match refused {
                _ if handed > 0 => HANDED_PATIENCE,
                LedgerError::NoRoom { others: 1.., .. } => ROOM_PATIENCE,
                _ => Duration::ZERO,
            };
            if began.elapsed() >= patience {
                return Err(refused);
            }
            std::thread::sleep(NAP);
        }
    }

    /// Writes down, whether there is room or not.
    pub(super) fn write_down(&self, uuid: Uuid, claim: Claim) -> Result<u64, LedgerError> {
        let (next, rows) = &mut *self.rows();
        let row = rows.entry(uuid).or_default();
        let _locked = self.lock(&uuid)?;
        self.enter(&uuid, next, row, claim)
    }

    /// Changes the blocks of a reservation, or ends it.
    pub(super) fn change(&self, uuid: Uuid, id: u64, blocks: Option<u32>) {
        let (_, rows) = &mut *self.rows();
        let Some(row) = rows.get_mut(&uuid) else { return };
        let Some(at) = row.claims.iter().position(|(other, _)| *other == id) else { return };
        match blocks {
            Some(blocks) => row.claims[at].1 = Claim { blocks, handed: 0, ..row.claims[at].1 },
            None => drop(row.claims.swap_remove(at)),
        }
        let stored = self.lock(&uuid).and_then(|_locked| self.store(&uuid, row));
        if let Err(error) = stored {
            // Until the next change, others count too many blocks.
            tracing::warn!(%error, "blocks are not given back in the ledger");
        }
    }

    /// All that is reserved.
    pub(super) fn census(&self, uuid: Uuid) -> Result<Vec<Holding>, LedgerError> {
        let (_, rows) = &mut *self.rows();
        let row = rows.entry(uuid).or_default();
        let _locked = self.lock(&uuid)?;
        let claims: Vec<Claim> = row.claims.iter().map(|(_, claim)| *claim).collect();
        let own = (!claims.is_empty()).then(|| Holding { process: std::process::id(), claims });
        Ok(own.into_iter().chain(self.others(&uuid, row)?).collect())
    }

    pub(super) fn own_blocks(&self, uuid: Uuid) -> u32 {
        let (_, rows) = &*self.rows();
        let claims = rows.get(&uuid).into_iter().flat_map(|row| &row.claims);
        claims.fold(0, |sum, (_, claim)| sum.saturating_add(claim.blocks))
    }

    fn enter(
        &self,
        uuid: &Uuid,
        next: &mut u64,
        row: &mut Row,
        claim: Claim,
    ) -> Result<u64, LedgerError> {
        let id = *next;
        *next += 1;
        row.claims.push((id, claim));
        if let Err(error) = self.store(uuid, row) {
            row.claims.pop();
            return Err(error);
        }
        Ok(id)
    }

    fn unwritable(&self, error: &io::Error) -> LedgerError {
        let folder = self.folder.as_deref().unwrap_or(Path::new("")).display().to_string();
        LedgerError::Unwritable { folder, reason: error.to_string() }
    }

    /// The ledger of this GPU, for as long as what this gives lives; nothing, without a folder.
    pub(super) fn lock(&self, uuid: &Uuid) -> Result<Locked, LedgerError> {
        let Some(folder) = &self.folder else { return Ok(Locked(None)) };
        let path = folder.join(format!("{}.lock", name(uuid)));
        let opened = || open(OpenOptions::new().create(true).truncate(false), &path);
        // Whatever cleans up /dev/shm may have removed it.
        let again = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => own_folder(folder).and_then(|_| opened()),
            _ => Err(error),
        };
        let began = Instant::now();
        loop {
            let file = opened().or_else(again).map_err(|error| self.unwritable(&error))?;
            match file.try_lock() {
                // Somebody may have removed it meanwhile, and the next one has made another.
                Ok(()) if is_at(&file, &path) => return Ok(Locked(Some(file))),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if began.elapsed() > LOCK_PATIENCE => {
                    return Err(LedgerError::Busy { folder: folder.display().to_string() });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(NAP / 8),
                Err(TryLockError::Error(error)) => return Err(self.unwritable(&error)),
            }
        }
    }

    /// What other processes have reserved. The ledger is locked.
    fn others(&self, uuid: &Uuid, row: &Row) -> Result<Vec<Holding>, LedgerError> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let fails = |error: io::Error| self.unwritable(&error);
        let prefix = format!("{}.", name(uuid));
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(fails)? {
            let path = entry.map_err(fails)?.path();
            let file_name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            let is_row = file_name.strip_prefix(&prefix).is_some_and(|rest| rest != "lock");
            if !is_row || row.file.as_ref().is_some_and(|(own, _)| is_at(own, &path)) {
                continue;
            }
            let mut file = match open(&mut OpenOptions::new(), &path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(fails)?,
            };
            match file.try_lock() {
                // Its process has ended.
                Ok(()) => drop(fs::remove_file(&path)),
                Err(_) => found.extend(read(&mut file)),
            }
        }
        Ok(found)
    }

    /// Writes what is reserved into the file. The ledger is locked.
    fn store(&self, uuid: &Uuid, row: &mut Row) -> Result<(), LedgerError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if row.claims.is_empty() {
            give_up(row);
            return Ok(());
        }
        let mut stored = || {
            if row.file.as_ref().is_none_or(|(file, path)| !is_at(file, path)) {
                row.file = Some(make(folder, uuid)?);
            }
            row.file.as_mut().map_or(Ok(()), |(file, _)| write(file, &row.claims))
        };
        stored().map_err(|error| self.unwritable(&error))
    }
}

/// Removes a process's file, which it needs no more.
fn give_up(row: &mut Row) {
    if let Some((file, path)) = row.file.take() {
        if is_at(&file, &path) {
            drop(fs::remove_file(path));
        }
        drop(file.unlock());
    }
}

/// A ledger that this process has locked. It is unlocked, not only closed: a child that was forked meanwhile has the file
/// as well.
pub(super) struct Locked(pub(super) Option<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(File::unlock) {
            tracing::warn!(%error, "the ledger is not unlocked");
        }
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        self.rows().1.values_mut().for_each(give_up);
    }
}

/// A new file for this process, locked.
fn make(folder: &Path, uuid: &Uuid) -> io::Result<(File, PathBuf)> {
    // Processes of two namespaces may have the same number, and files of dead ones are left over.
    for turn in 0..1000 {
        let path = folder.join(format!("{}.{}-{turn}", name(uuid), std::process::id()));
        let file = match open(OpenOptions::new().create_new(true), &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => opened?,
        };
        file.try_lock()?;
        return Ok((file, path));
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Whether a file is still the one that has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |of: fs::Metadata| (of.dev(), of.ino());
    let both =
        file.metadata().and_then(|own| Ok((number(own), number(fs::symlink_metadata(path)?))));
    both.is_ok_and(|(own, there)| own == there)
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.read(true).write(true).mode(0o600).open(path)
}

/// A folder that only this user writes to; made if it is not there.
fn own_folder(path: &Path) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !ours || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not a folder that this user alone writes to"));
    }
    Ok(path.to_owned())
}

/// A GPU as its files are named.
fn name(uuid: &Uuid) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(file: &mut File, claims: &[(u64, Claim)]) -> io::Result<()> {
    let mut text = format!("process {}\n", std::process::id());
    for (_, claim) in claims {
        let Claim { holder, blocks, room, together, handed } = claim;
        let with = if *together { "together" } else { "alone" };
        text += &format!("{holder} {blocks} {room} {with} {handed}\n");
    }
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

/// What a file says. Unknown lines, as another version may write, are ignored.
fn read(file: &mut File) -> Option<Holding> {
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text).ok()?;
    let mut lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let process = match lines.next()?[..] {
        ["process", number] => number.parse().ok()?,
        _ => return None,
    };
    let claim = |words: Vec<&str>| {
        let [holder, blocks, room, with, handed] = words[..] else { return None };
        let holder = Holder::ALL.into_iter().find(|known| known.name() == holder)?;
        let [blocks, room, handed] = [blocks, room, handed].map(|number| number.parse().ok());
        let together = with == "together";
        Some(Claim { holder, blocks: blocks?, room: room?, together, handed: handed? })
    };
    Some(Holding { process, claims: lines.filter_map(claim).collect() })
}
