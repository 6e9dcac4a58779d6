//! Mixtures of experts: rows of tokens go to the rank that has their experts, and come back.
//!
//! One pair of ranks of an all-to-all. The sender lists its tokens in ascending order; the receiver lists the slots of
//! its buffer, where rows lie expert by expert. Rows come back (*combine*) with the lists changed about.

use gapless_dtype::{Datatype, Primitive};

use crate::{
    case::{Case, Side, array_bytes, signed},
    error::LayoutError,
    families::Family,
    index_list::{IndexList, runs, scaled},
};

const LAYOUT: &str = "dispatch";
const ELEMENT: u64 = 2;

/// Tokens of a rank: of generating, and of reading prompts.
pub const TOKENS: [u64; 3] = [128, 1024, 4096];

/// `routed` of a rank's `tokens` go to another rank, which has a slot for each token of `ranks` ranks; and those rows
/// come back. A row has `width` 16-bit floats.
///
/// # Errors
/// [`LayoutError`] if a number is 0, more are routed than there are, or a buffer is too large.
pub fn dispatch(
    tokens: u64,
    routed: u64,
    width: u64,
    ranks: u64,
    lists: IndexList,
) -> Result<[Case; 2], LayoutError> {
    let slots = tokens.checked_mul(ranks).ok_or(LayoutError::TooLarge { layout: LAYOUT })?;
    let row = Datatype::contiguous(width, &Primitive::BFloat16.into())?;
    let side = |rows: u64, list: &[i64]| {
        let bytes = array_bytes(LAYOUT, &[ELEMENT, width, rows])?;
        let starts = scaled(list, signed(LAYOUT, ELEMENT * width)?);
        Ok::<_, LayoutError>(Side::one(Datatype::hindexed_block(1, &starts, &row)?, 0, bytes))
    };
    let mut list = lists.take(LAYOUT, tokens, routed, 0)?;
    list.sort_unstable();
    let slot_list = lists.take(LAYOUT, slots, routed, 1)?;
    let (near, far) = (side(tokens, &list)?, side(slots, &slot_list)?);
    let (near_blocks, far_blocks) = (runs(&list), runs(&slot_list));
    let case = |what: &str, (send, sent): (&Side, u64), (recv, received): (&Side, u64)| Case {
        name: format!("{what} {routed} of {tokens} tokens"),
        family: Family::Dispatch,
        payload_bytes: send.payload_bytes(),
        send: send.clone(),
        recv: recv.clone(),
        expected_send_blocks: Some(sent),
        expected_recv_blocks: Some(received),
    };
    Ok([
        case("dispatch", (&near, near_blocks), (&far, far_blocks)),
        case("combine", (&far, far_blocks), (&near, near_blocks)),
    ])
}

/// The messages of the catalogue: rows of 7168 elements among 8 ranks. Of 256 experts, each token has 8: a rank has
/// none of them with probability (7/8)⁸, so that 21 of 32 tokens go to it.
pub(crate) fn catalogue(tokens: u64, lists: IndexList) -> Result<Vec<Case>, LayoutError> {
    if !tokens.is_multiple_of(32) {
        let rule = "the number of tokens must be a multiple of 32";
        return Err(LayoutError::Parameters { layout: LAYOUT, rule });
    }
    let cases = dispatch(tokens, tokens / 32 * 21, 7168, 8, lists.drawn())?;
    Ok(cases.map(|case| Case { name: case.name + &lists.suffix(), ..case }).into())
}
