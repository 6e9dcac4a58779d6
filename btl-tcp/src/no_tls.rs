//! Takes the place of `tls` in a build without encryption. Its types have no values, except that a handshake fails.

#![allow(dead_code, clippy::boxed_local, reason = "it has the face of what it stands for")]

use crate::address::TcpAddress;
use crate::burst::Next;
use crate::proof::Keys;
use crate::socket::Socket;
use gapless_btl::LinkError;
use std::io::{IoSlice, IoSliceMut};

/// Whether connections can be encrypted.
pub(crate) const IS_BUILT: bool = false;

/// There is none.
#[derive(Debug)]
pub(crate) enum Records {}

impl Records {
    pub(crate) fn read(
        &mut self,
        _: &Socket,
        _: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>, LinkError> {
        match *self {}
    }

    pub(crate) fn has_more(&self) -> bool {
        match *self {}
    }

    pub(crate) fn write(
        &mut self,
        _: &Socket,
        _: &[IoSlice<'_>],
        _: Next,
    ) -> Result<usize, LinkError> {
        match *self {}
    }

    pub(crate) fn sealed(&self) -> usize {
        match *self {}
    }

    pub(crate) fn carried(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn fall_silent(&mut self, _: &Socket) {
        match *self {}
    }
}

/// None is ever made.
#[derive(Debug)]
pub(crate) enum Handshake {}

impl Handshake {
    pub(crate) fn call(_: &Keys, _: &TcpAddress, _: &TcpAddress) -> Result<Handshake, String> {
        Err("this program was built without encryption".to_owned())
    }

    pub(crate) fn listen(
        keys: &Keys,
        own: &TcpAddress,
        peer: &TcpAddress,
    ) -> Result<Handshake, String> {
        Handshake::call(keys, own, peer)
    }

    pub(crate) fn go_on(self: Box<Self>, _: &Socket) -> Result<Progress, Refused> {
        match *self {}
    }
}

/// Why it is over, if there were any.
pub(crate) struct Refused {
    pub(crate) hung_up: bool,
    pub(crate) why: String,
}

/// How a handshake goes, if there were any.
pub(crate) enum Progress {
    Going(Box<Handshake>),
    Done(Box<Records>),
}
