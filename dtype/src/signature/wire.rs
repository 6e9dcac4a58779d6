//! Signatures as bytes, for flattened layouts.
//!
//! A list of nodes, each referring to earlier ones by their places, the whole signature last:
//!
//! ```text
//! signature := n:varint node{n}
//! node      := 0                                   empty; only alone
//!            | 1 code:u8                           a basic type
//!            | 2 count:varint place:varint         count ≥ 2 copies of an earlier node
//!            | 3 len:varint place:varint{len}      len ≥ 2 earlier nodes, one after the other
//! varint    := little-endian groups of 7 bits, the high bit set on all but the last; at most 10
//! ```
//!
//! A node that is shared is written once, so the bytes grow with the type's construction and not
//! with its elements. Decoding trusts nothing: places, depth, number of nodes and references, and
//! totals are checked, and memory is bounded by the bytes given.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::{Node, NodeKind, Signature};
use crate::limits::{MAX_SIGNATURE_DEPTH, MAX_SIGNATURE_NODES, MAX_SIGNATURE_PARTS};
use crate::primitive::Primitive;

const EMPTY: u8 = 0;
const BASIC: u8 = 1;
const REPEAT: u8 = 2;
const SEQUENCE: u8 = 3;

/// Why bytes are not a signature or a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureDecodeError {
    /// The bytes end too early.
    Truncated,
    /// A number does not end within ten bytes or does not fit in 64 bits.
    Number,
    /// A node of no known kind.
    Tag(u8),
    /// A basic type of no known code, or one that is not basic.
    Basic(u8),
    /// A node refers to itself or a later one.
    Place {
        /// The node's place.
        node: usize,
        /// The place it refers to.
        place: u64,
    },
    /// A repeat or sequence of fewer than two, or an empty part, or no node at all.
    Short,
    /// More nodes or parts than the limits in [`limits`](crate::limits) allow.
    TooLarge {
        /// Nodes or parts.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many are allowed.
        limit: usize,
    },
    /// Nested deeper than [`MAX_SIGNATURE_DEPTH`].
    TooDeep,
    /// The total of bytes does not fit in 64 bits.
    Overflow,
    /// No signature has such a digest.
    Digest,
}

impl fmt::Display for SignatureDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the signature's bytes end in the middle"),
            Self::Number => f.write_str("the signature holds a number of more than 64 bits"),
            Self::Tag(what) => write!(f, "the signature has a node of unknown kind {what}"),
            Self::Basic(what) => write!(f, "the signature names an unknown basic type {what}"),
            Self::Place { node, place } => write!(
                f,
                "node {node} of the signature refers to node {place}, which is not before it"
            ),
            Self::Short => f.write_str(
                "the signature has a repeat, a sequence or a list of nodes that is too short",
            ),
            Self::TooLarge { what, found, limit } => {
                write!(f, "the signature has {found} {what}, more than {limit}")
            }
            Self::TooDeep => {
                write!(f, "the signature nests more than {MAX_SIGNATURE_DEPTH} levels")
            }
            Self::Overflow => f.write_str("the signature's bytes overflow 64 bits"),
            Self::Digest => f.write_str("no signature has such a digest"),
        }
    }
}

impl std::error::Error for SignatureDecodeError {}

impl Signature {
    /// Appends the signature's encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut order = Vec::new();
        let mut places = HashMap::new();
        self.number(&mut order, &mut places);
        write_number(order.len() as u64, out);
        for node in order {
            match &node.kind {
                NodeKind::Empty => out.push(EMPTY),
                NodeKind::Basic(primitive) => out.extend([BASIC, *primitive as u8]),
                NodeKind::Repeat { count, unit } => {
                    out.push(REPEAT);
                    write_number(*count, out);
                    write_number(places[&Arc::as_ptr(&unit.0)], out);
                }
                NodeKind::Sequence { parts, .. } => {
                    out.push(SEQUENCE);
                    write_number(parts.len() as u64, out);
                    for part in parts {
                        write_number(places[&Arc::as_ptr(&part.0)], out);
                    }
                }
            }
        }
    }

    /// Lists every node once, parts before wholes. Recursion is bounded by the depth limit.
    pub(super) fn number<'a>(
        &'a self,
        order: &mut Vec<&'a Node>,
        places: &mut HashMap<*const Node, u64>,
    ) {
        let pointer = Arc::as_ptr(&self.0);
        if places.contains_key(&pointer) {
            return;
        }
        match &self.0.kind {
            NodeKind::Empty | NodeKind::Basic(_) => {}
            NodeKind::Repeat { unit, .. } => unit.number(order, places),
            NodeKind::Sequence { parts, .. } => {
                for part in parts {
                    part.number(order, places);
                }
            }
        }
        places.insert(pointer, order.len() as u64);
        order.push(&self.0);
    }

    /// Reads a signature off the front of `bytes`, which then starts behind it.
    ///
    /// # Errors
    ///
    /// If the bytes are not what [`encode`](Self::encode) can have written, or exceed a limit of
    /// [`limits`](crate::limits). `bytes` is then left anywhere.
    pub fn decode(bytes: &mut &[u8]) -> Result<Signature, SignatureDecodeError> {
        let count = bounded(read_number(bytes)?, "nodes", MAX_SIGNATURE_NODES)?;
        let mut nodes: Vec<Signature> = Vec::with_capacity(count.min(bytes.len()));
        let mut parts_left = MAX_SIGNATURE_PARTS;
        for _ in 0..count {
            let node = decode_node(bytes, &nodes, &mut parts_left, count)?;
            if node.0.depth > MAX_SIGNATURE_DEPTH {
                return Err(SignatureDecodeError::TooDeep);
            }
            nodes.push(node);
        }
        nodes.pop().ok_or(SignatureDecodeError::Short)
    }
}

fn decode_node(
    bytes: &mut &[u8],
    nodes: &[Signature],
    parts_left: &mut usize,
    count: usize,
) -> Result<Signature, SignatureDecodeError> {
    match read_byte(bytes)? {
        EMPTY if count == 1 => Ok(Signature::empty()),
        EMPTY => Err(SignatureDecodeError::Short),
        BASIC => {
            let code = read_byte(bytes)?;
            Primitive::from_code(code)
                .filter(|primitive| !primitive.is_pair())
                .map(Signature::basic)
                .ok_or(SignatureDecodeError::Basic(code))
        }
        REPEAT => {
            let copies = read_number(bytes)?;
            let unit = read_place(bytes, nodes)?;
            if copies < 2 {
                return Err(SignatureDecodeError::Short);
            }
            Signature::repeat(copies, unit).ok_or(SignatureDecodeError::Overflow)
        }
        SEQUENCE => {
            let len = bounded(read_number(bytes)?, "parts", *parts_left)?;
            *parts_left -= len;
            if len < 2 {
                return Err(SignatureDecodeError::Short);
            }
            // A part takes a byte at least: do not allocate for more than can be there.
            let mut parts = Vec::with_capacity(len.min(bytes.len()));
            for _ in 0..len {
                parts.push(read_place(bytes, nodes)?);
            }
            Signature::of_parts(parts.into()).ok_or(SignatureDecodeError::Overflow)
        }
        tag => Err(SignatureDecodeError::Tag(tag)),
    }
}

fn bounded(found: u64, what: &'static str, limit: usize) -> Result<usize, SignatureDecodeError> {
    match usize::try_from(found) {
        Ok(found) if found <= limit => Ok(found),
        _ => Err(SignatureDecodeError::TooLarge { what, found, limit }),
    }
}

fn read_place(bytes: &mut &[u8], nodes: &[Signature]) -> Result<Signature, SignatureDecodeError> {
    let place = read_number(bytes)?;
    let node = usize::try_from(place).ok().and_then(|place| nodes.get(place));
    node.cloned().ok_or(SignatureDecodeError::Place { node: nodes.len(), place })
}

fn read_byte(bytes: &mut &[u8]) -> Result<u8, SignatureDecodeError> {
    let (&first, rest) = bytes.split_first().ok_or(SignatureDecodeError::Truncated)?;
    *bytes = rest;
    Ok(first)
}

fn read_number(bytes: &mut &[u8]) -> Result<u64, SignatureDecodeError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = read_byte(bytes)?;
        let group = u64::from(byte & 0x7f);
        if group << shift >> shift != group {
            return Err(SignatureDecodeError::Number);
        }
        number |= group << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(SignatureDecodeError::Number)
}

fn write_number(mut number: u64, out: &mut Vec<u8>) {
    loop {
        let group = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            return out.push(group);
        }
        out.push(group | 0x80);
    }
}

#[cfg(test)]
mod tests;
