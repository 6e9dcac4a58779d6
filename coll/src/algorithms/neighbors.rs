//! Neighbourhoods: each rank sends to its destinations and receives from its sources, all at once.
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::topologies::Edge;

/// What goes along the edges: one area per destination, and per source.
pub(crate) fn exchange(
    b: &mut Builder,
    rank: usize,
    (sources, into): (&[Option<Edge>], Area),
    (destinations, out): (&[Option<Edge>], &[Area]),
    recv_cuts: &Cuts,
) {
    let place = |index: usize| into.cut(recv_cuts.range(index..index + 1));
    for (index, source) in sources.iter().enumerate() {
        match source {
            Some(edge) if edge.rank as usize == rank => {
                let same = destinations.iter().position(|other| *other == Some(*edge));
                if let Some(from) = same.filter(|from| out[*from].len == place(index).len) {
                    b.copy(out[from], place(index));
                }
            }
            Some(edge) => b.receive_slot(edge.rank as usize, edge.lane, place(index)),
            None => {}
        }
    }
    for (destination, out) in destinations.iter().zip(out) {
        if let Some(edge) = destination.filter(|edge| edge.rank as usize != rank) {
            b.send_slot(edge.rank as usize, edge.lane, *out);
        }
    }
}
