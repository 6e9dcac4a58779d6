//! The typemap written out, markers included, for small types: bounds by MPI's own words.

use super::super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Basic(Primitive),
    LbMarker,
    UbMarker,
}

/// Entries with their displacements in bytes, in typemap order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TypeMap(Vec<(Entry, i64)>);

impl TypeMap {
    pub(super) fn of(t: &Datatype) -> TypeMap {
        let mut map = TypeMap::default();
        match t.contents() {
            Contents::Primitive(p) => {
                let at = |(part, at): (Primitive, u64)| (Entry::Basic(part), at as i64);
                map.0.extend(p.parts().map(at));
            }
            Contents::Dup { old } => map = TypeMap::of(old),
            Contents::Contiguous { count, old } => map.block(&TypeMap::of(old), count, 0),
            Contents::Vector { count, blocklength, stride, old } => {
                let old = TypeMap::of(old);
                let stride = stride * old.extent();
                (0..count as i64).for_each(|i| map.block(&old, blocklength, i * stride));
            }
            Contents::Hvector { count, blocklength, stride_bytes, old } => {
                let old = TypeMap::of(old);
                (0..count as i64).for_each(|i| map.block(&old, blocklength, i * stride_bytes));
            }
            Contents::Indexed { blocklengths, displacements, old } => {
                let old = TypeMap::of(old);
                for (&n, &d) in blocklengths.iter().zip(displacements) {
                    map.block(&old, n, d * old.extent());
                }
            }
            Contents::Hindexed { blocklengths, displacements_bytes, old } => {
                let old = TypeMap::of(old);
                for (&n, &d) in blocklengths.iter().zip(displacements_bytes) {
                    map.block(&old, n, d);
                }
            }
            Contents::IndexedBlock { blocklength, displacements, old } => {
                let old = TypeMap::of(old);
                for &d in displacements {
                    map.block(&old, blocklength, d * old.extent());
                }
            }
            Contents::HindexedBlock { blocklength, displacements_bytes, old } => {
                let old = TypeMap::of(old);
                for &d in displacements_bytes {
                    map.block(&old, blocklength, d);
                }
            }
            Contents::Struct { blocklengths, displacements_bytes, types } => {
                for ((&n, &d), old) in blocklengths.iter().zip(displacements_bytes).zip(types) {
                    map.block(&TypeMap::of(old), n, d);
                }
            }
            Contents::Subarray { sizes, subsizes, starts, order, old } => {
                let dims = sizes.len();
                let picked =
                    |i: usize, index: u64| (starts[i]..starts[i] + subsizes[i]).contains(&index);
                map.select(sizes, order, &TypeMap::of(old), |indices| {
                    (0..dims).all(|i| picked(i, indices[i]))
                });
            }
            Contents::Darray { rank, gsizes, distribs, dargs, psizes, order, old, .. } => {
                let mut coordinates = vec![0; psizes.len()];
                let mut left = rank;
                for i in (0..psizes.len()).rev() {
                    coordinates[i] = left % psizes[i];
                    left /= psizes[i];
                }
                let owner = |i: usize, index: u64| match (distribs[i], dargs[i]) {
                    (Distribution::None, _) => 0,
                    (Distribution::Block, None) => index / gsizes[i].div_ceil(psizes[i]),
                    (Distribution::Block, Some(k)) => index / k,
                    (Distribution::Cyclic, k) => index / k.unwrap_or(1) % psizes[i],
                };
                map.select(gsizes, order, &TypeMap::of(old), |indices| {
                    (0..gsizes.len()).all(|i| owner(i, indices[i]) == coordinates[i])
                });
            }
            Contents::Resized { lb, extent, old } => {
                map = TypeMap::of(old).without_markers();
                map.0.insert(0, (Entry::LbMarker, lb));
                map.0.push((Entry::UbMarker, lb + extent));
            }
        }
        map
    }

    fn block(&mut self, old: &TypeMap, count: u64, at: i64) {
        let extent = old.extent();
        for i in 0..count as i64 {
            let moved = old.0.iter().map(|&(e, d)| (e, d + at + i * extent));
            self.0.extend(moved);
        }
    }

    /// Elements of a full array that `chosen` takes, in storage order, with the array's bounds.
    fn select(
        &mut self,
        sizes: &[u64],
        order: Order,
        old: &TypeMap,
        chosen: impl Fn(&[u64]) -> bool,
    ) {
        let total: u64 = sizes.iter().product();
        self.0.push((Entry::LbMarker, 0));
        for element in 0..total {
            let mut indices = vec![0; sizes.len()];
            let mut left = element;
            let mut take = |i: usize| {
                indices[i] = left % sizes[i];
                left /= sizes[i];
            };
            match order {
                Order::Fortran => (0..sizes.len()).for_each(&mut take),
                Order::C => (0..sizes.len()).rev().for_each(&mut take),
            }
            if chosen(&indices) {
                let at = element as i64 * old.extent();
                let entries = old.clone().without_markers();
                self.0.extend(entries.0.iter().map(|&(e, d)| (e, d + at)));
            }
        }
        self.0.push((Entry::UbMarker, total as i64 * old.extent()));
    }

    fn without_markers(mut self) -> TypeMap {
        self.0.retain(|(entry, _)| matches!(entry, Entry::Basic(_)));
        self
    }

    fn basics(&self) -> impl Iterator<Item = (Primitive, i64)> + Clone {
        self.0.iter().filter_map(|&(entry, at)| match entry {
            Entry::Basic(primitive) => Some((primitive, at)),
            _ => None,
        })
    }

    pub(super) fn displacements(&self) -> Vec<i64> {
        self.basics().map(|(_, at)| at).collect()
    }

    pub(super) fn primitives(&self) -> Vec<Primitive> {
        self.basics().map(|(primitive, _)| primitive).collect()
    }

    fn extent(&self) -> i64 {
        let (_, lb, ub, _, _) = self.facts();
        ub - lb
    }

    /// `(size, lb, ub, true_lb, true_ub)` by the definitions of MPI 4.1 §5.1.6 to §5.1.8.
    pub(super) fn facts(&self) -> (u64, i64, i64, i64, i64) {
        let size = self.basics().map(|(p, _)| p.size_bytes()).sum();
        let end = |(p, at): (Primitive, i64)| at + p.size_bytes() as i64;
        let true_lb = self.basics().map(|(_, at)| at).min().unwrap_or(0);
        let true_ub = self.basics().map(end).max().unwrap_or(0);
        let marked = |wanted: Entry| {
            let at = self.0.iter().filter(move |(e, _)| *e == wanted);
            at.map(|&(_, at)| at)
        };
        let lb = marked(Entry::LbMarker).min().unwrap_or(true_lb);
        let ub = marked(Entry::UbMarker).max().unwrap_or_else(|| {
            let align = |(p, _): (Primitive, i64)| p.alignment_bytes() as i64;
            let strictest = self.basics().map(align).max().unwrap_or(1);
            let mut ub = true_ub;
            while (ub - lb) % strictest != 0 {
                ub += 1;
            }
            ub
        });
        (size, lb, ub, true_lb, true_ub)
    }
}
