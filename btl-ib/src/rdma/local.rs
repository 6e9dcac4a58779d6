//! How the adapter reaches the local memory of operations, and how much may be registered.

use super::direct::Direct;
use super::{OneSided, PIECES_MAX, RdmaKind, RdmaOperation, STAGING_BYTES};
use crate::ib::Ib;
use crate::key::Key;
use crate::link::{LinkState, PostedWork};
use crate::verbs::flags::MemoryAccess;
use crate::verbs::memory::Mr;
use gapless_btl::{LinkError, RdmaError, RemoteKey};
use gapless_mem::Region;
use std::sync::Arc;
use std::time::Instant;

/// How the adapter reaches local pieces.
#[derive(Default)]
pub(super) struct Reach {
    /// A key for each; none if the bytes are staged.
    pub(super) lkeys: Box<[u32]>,
    /// What the keys are of.
    pub(super) held: Vec<Arc<Mr>>,
    /// How many of these were registered for the operation, and their bytes.
    pub(super) in_use: (usize, u64),
}

impl Ib {
    /// How the adapter reaches local pieces: without keys if the bytes are to be staged.
    ///
    /// # Safety
    /// Until the registrations are dropped, the pieces describe memory that is valid for this way.
    ///
    /// # Errors
    /// There are pieces of devices' memory, and not all can be reached without staging.
    pub(super) unsafe fn reach(
        &mut self,
        way: RdmaKind,
        local: &[Region],
        total: u64,
    ) -> Result<Reach, RdmaError> {
        let (mut lkeys, mut held) = (Vec::with_capacity(local.len()), Vec::new());
        let mut in_use = (0, 0);
        let (mut kind, mut refused) = (0, None);
        let of_devices = local.iter().any(|region| !region.space().cpu_accessible());
        for region in local {
            if region.is_empty() {
                lkeys.push(0);
            } else if !region.space().cpu_accessible() {
                // SAFETY: the caller's promise.
                match unsafe { self.reach_device(region) } {
                    Ok(Direct { mr, in_use: for_it }) => {
                        lkeys.push(mr.lkey());
                        if !held.last().is_some_and(|last| Arc::ptr_eq(last, &mr)) {
                            held.push(mr);
                        }
                        let more = if for_it { (1, region.len()) } else { (0, 0) };
                        in_use = (in_use.0 + more.0, in_use.1 + more.1);
                    }
                    Err(error) => {
                        (kind, refused) = (2, Some(error));
                        break;
                    }
                }
            } else if let Some(registration) = self.one_sided.within(region, way) {
                lkeys.push(registration.mr.lkey());
                held.push(Arc::clone(&registration.mr));
            } else if let Some(mr) =
                self.lasting_piece(region, total >= self.config.register_from_bytes)
            {
                lkeys.push(mr.lkey());
                held.push(mr);
            } else if total >= self.config.register_from_bytes
                && held.len() < PIECES_MAX
                && self.make_room(region.len()).is_ok()
            {
                let access = MemoryAccess::of_operation(way);
                // SAFETY: the caller's promise; peers get no right to it.
                match unsafe { Mr::new(&self.domain, *region, access) } {
                    Ok(mr) => {
                        kind = 1;
                        lkeys.push(mr.lkey());
                        held.push(Arc::new(mr));
                        in_use = (in_use.0 + 1, in_use.1 + region.len());
                        self.one_sided.count_in_use(1, region.len());
                    }
                    Err(error) => {
                        tracing::debug!(%error, "staged instead");
                        kind = 2;
                        break;
                    }
                }
            } else {
                kind = 2;
                break;
            }
        }
        if kind == 2 {
            self.one_sided.give_back(in_use);
            if of_devices {
                let reason =
                    "pieces of a device's memory beside others that must be staged".to_owned();
                return Err(refused.unwrap_or(RdmaError::Unavailable { reason }));
            }
        }
        self.one_sided.ways[kind] += total;
        if kind == 2 {
            return Ok(Reach::default());
        }
        Ok(Reach { lkeys: lkeys.into(), held, in_use })
    }

    /// Whether one more region may be registered, beside all but so many regions of so many bytes.
    pub(super) fn may_register(
        &self,
        bytes: u64,
        (less, less_bytes): (usize, u64),
    ) -> Result<(), RdmaError> {
        let OneSided { registrations, registered_bytes, in_use, in_use_bytes, remembered, .. } =
            &self.one_sided;
        let (kept, kept_bytes) = remembered.counts();
        // (Memory that is kept may be freed by another thread meanwhile.)
        let count = registrations.len() + in_use + kept.saturating_sub(less);
        let all_bytes = registered_bytes + in_use_bytes + kept_bytes.saturating_sub(less_bytes);
        let (most, most_bytes) = (self.config.registrations_max, self.config.registered_bytes_max);
        if count >= most || all_bytes.saturating_add(bytes) > most_bytes {
            let reason = format!(
                "{count} regions of {all_bytes} bytes are registered, {most} of {most_bytes} may be"
            );
            return Err(RdmaError::Unavailable { reason });
        }
        Ok(())
    }

    /// [`Rdma::deregister`](gapless_btl::Rdma::deregister).
    pub(super) fn take_back(&mut self, key: &RemoteKey) {
        let Ok(key) = Key::open(key, &self.keys) else { return };
        if key.owner != self.address.id {
            return;
        }
        if self.one_sided.remembered.return_key(key.address, key.rkey) {
            return;
        }
        let Some(one) = self.one_sided.registrations.remove(&(key.address, key.rkey)) else {
            return;
        };
        self.one_sided.registered_bytes -= one.len;
        // Operations of this end may work through it: they end first, with their links if need be.
        let until = Instant::now() + self.config.notice;
        while Arc::strong_count(&one.mr) > 1 && Instant::now() < until {
            if self.look() {
                self.finish_endings();
            }
            self.go_on();
        }
        if Arc::strong_count(&one.mr) > 1 {
            self.lose_users(&one.mr);
        }
        // Whoever held it is gone: the drop ends it.
        if Arc::strong_count(&one.mr) > 1 {
            gapless_mem::abort("an operation is of no link, and keeps memory that is taken back");
        }
    }

    /// Loses links whose operations work through a registration: their queue pairs are destroyed.
    pub(super) fn lose_users(&mut self, mr: &Arc<Mr>) {
        let OneSided { operations, .. } = &self.one_sided;
        let uses = |at: u32| {
            let operation = operations.get(at as usize).and_then(Option::as_ref);
            operation.is_some_and(|it| it.held.iter().any(|held| Arc::ptr_eq(held, mr)))
        };
        let users = (0..).zip(&self.links).filter(|(_, link)| match &link.state {
            LinkState::Up(up) => {
                let mut posted = up.posted.iter();
                posted.any(
                    |it| matches!(it.work, PostedWork::OperationPart(part) if uses(part.operation)),
                ) || up.operations.iter().any(|&at| uses(at))
            }
            LinkState::Known | LinkState::Calling(_) | LinkState::Lost(_) => false,
        });
        let users: Vec<u32> = users.map(|(id, _)| id).collect();
        for id in users {
            let reason = format!(
                "{}: an operation takes longer than {:?}, and its memory is taken back",
                self.whom(id),
                self.config.notice
            );
            self.lose(id, LinkError::Unreachable { reason });
        }
    }
}

impl OneSided {
    /// Copies a staged part between its buffer and the local pieces, whose bytes from `at` on it is.
    ///
    /// # Safety
    /// The operation has not ended, so its local memory is lent; the adapter does not have the buffer.
    pub(super) unsafe fn copy(
        &self,
        operation: &RdmaOperation,
        buffer: u32,
        (at, bytes): (u64, u64),
        way: RdmaKind,
    ) {
        let (mut piece, mut offset) = (0, at);
        let mut done = 0;
        while done < bytes {
            let Some(local) = operation.local.get(piece) else { return };
            if offset >= local.len() {
                (piece, offset) = (piece + 1, offset - local.len());
                continue;
            }
            let count = (local.len() - offset).min(bytes - done);
            let place = u64::from(buffer) * STAGING_BYTES + done;
            let staged = self.staging.region().sub(place, count);
            let mine = local.sub(offset, count);
            if let (Ok(staged), Ok(mine)) = (staged, mine) {
                let (to, from) =
                    if way == RdmaKind::Write { (staged, mine) } else { (mine, staged) };
                // SAFETY: both are the CPU's memory: the caller vouches for the local one, and the buffer is ours
                // alone.
                let copied = unsafe { gapless_mem::copy(&to, &from) };
                debug_assert!(copied.is_ok(), "{copied:?}");
            }
            done += count;
            (piece, offset) = (piece + 1, 0);
        }
    }
}
