//! Which replica sends what: every sender gets an equal share of what its shard's takers want.

use std::collections::BTreeMap;
use std::ops::Range;

/// What a target rank wants of a shard: rows of equally many elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) to: u32,
    pub(super) rows: u64,
    pub(super) row_elements: u64,
}

/// Rows of a want that one holder of the shard sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Index of the want.
    pub(super) want: usize,
    pub(super) from: u32,
    pub(super) rows: Range<u64>,
}

/// Divides the wants among the shard's holders.
///
/// Who holds the shard takes all from itself. The others take from the holders that cost least to reach. Wants that
/// have the same nearest holders are laid end to end, and cut where a holder has its share: so much that all of these
/// have sent equally much then, if none had more before. So there are fewer pieces than wants and holders together, and
/// none sends more than its share, rounded up, and a part of a row.
pub(super) fn spread(
    holders: &[u32],
    wants: &[Want],
    cost: Option<&dyn Fn(u32, u32) -> u64>,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut groups = BTreeMap::<Vec<usize>, Vec<usize>>::new();
    for (index, want) in wants.iter().enumerate() {
        if holders.contains(&want.to) {
            pieces.push(Piece { want: index, from: want.to, rows: 0..want.rows });
            continue;
        }
        let nearest = match cost {
            None => (0..holders.len()).collect(),
            Some(cost) => {
                let costs: Vec<u64> = holders.iter().map(|from| cost(*from, want.to)).collect();
                let least = costs.iter().min();
                (0..holders.len()).filter(|it| Some(&costs[*it]) == least).collect()
            }
        };
        groups.entry(nearest).or_default().push(index);
    }
    let mut sent = vec![0u128; holders.len()];
    for (nearest, group) in groups {
        let mut rooms = rooms(&nearest, &sent, total(&group, wants)).into_iter().peekable();
        let mut room = rooms.next();
        for index in group {
            let Want { rows, row_elements, .. } = wants[index];
            let (mut left, mut row) = (u128::from(rows) * u128::from(row_elements), 0);
            while let Some((holder, free)) = room.as_mut().filter(|_| left > 0) {
                // The last one takes whatever is left, which fits.
                let taken = if rooms.peek().is_none() { left } else { left.min(*free) };
                *free = free.saturating_sub(taken);
                left -= taken;
                // Fewer than `rows`, so that it fits.
                let rest = u64::try_from(left.div_ceil(u128::from(row_elements))).unwrap_or(rows);
                let end = rows - rest;
                if row < end {
                    sent[*holder] += u128::from(end - row) * u128::from(row_elements);
                    pieces.push(Piece { want: index, from: holders[*holder], rows: row..end });
                    row = end;
                }
                if *free == 0 && rooms.peek().is_some() {
                    room = rooms.next();
                }
            }
        }
    }
    pieces
}

fn total(group: &[usize], wants: &[Want]) -> u128 {
    let elements = group.iter().map(|index| {
        let want = &wants[*index];
        u128::from(want.rows) * u128::from(want.row_elements)
    });
    elements.sum()
}

/// How much each of the nearest holders sends so that all have sent equally much then, as far as that is possible.
fn rooms(nearest: &[usize], sent: &[u128], total: u128) -> Vec<(usize, u128)> {
    let mut loads: Vec<u128> = nearest.iter().map(|holder| sent[*holder]).collect();
    loads.sort_unstable();
    let (mut level, mut sum) = (0, total);
    for (count, load) in (1..).zip(&loads) {
        if count > 1 && *load >= level {
            break;
        }
        sum += load;
        level = sum.div_ceil(count);
    }
    let room = |holder: &usize| (*holder, level.saturating_sub(sent[*holder]));
    nearest.iter().map(room).filter(|(_, room)| *room > 0).collect()
}
