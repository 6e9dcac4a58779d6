/* Where a word of the stream lies on the typed side: bytes from displacement 0. Pure functions of the
 * shape and the word's number (args.h); `w` is a word's bytes. They do not depend on the direction. */
#ifndef GAPLESS_LOOKUP_H
#define GAPLESS_LOOKUP_H

INLINE u32 divide(u32 n, Divide by) { return MULHI(n << 1, by.magic) >> by.shift; }

/* Block number `row` of a grid. */
INLINE i64 grid_at(const Strided *s, u32 row) {
    i64 at = 0;
    ROLLED for (u32 k = s->dims - 1; k > 0; k--) {
        u32 rest = divide(row, s->dim[k].by);
        at += (i64)(row - rest * s->dim[k].count) * s->dim[k].stride;
        row = rest;
    }
    return at + (i64)row * s->dim[0].stride;
}

INLINE i64 strided1_at(const Strided *s, u32 word, u32 w) {
    u32 row = divide(word, s->by_len);
    return (i64)row * s->dim[0].stride + (i64)(word - row * s->len) * w;
}

INLINE i64 strided_at(const Strided *s, u32 word, u32 w) {
    u32 row = divide(word, s->by_len);
    return grid_at(s, row) + (i64)(word - row * s->len) * w;
}

/* Words of an instance before its run j. Wraps on the way, never in the sum. */
INLINE u32 affine_before(const Affine *s, u32 j) {
    return j * s->len + (u32)s->grow * (j * (j - 1) / 2);
}

/* The run that word `word` of an instance lies in. Solved for the end at which runs are short, where
 * single precision is within one of the truth; the loops make it exact. */
INLINE u32 affine_run(const Affine *s, u32 word) {
    u32 narrows = s->grow < 0;
    u32 g = narrows ? (u32)-s->grow : (u32)s->grow;
    u32 tip = narrows ? s->len - g * (s->count - 1) : s->len;
    float from_tip = (float)(narrows ? s->size - 1 - word : word);
    float b = 2.0f * (float)tip - (float)g;
    float root = ROOT(b * b + 8.0f * (float)g * from_tip);
    float above = b > 0.0f ? 4.0f * from_tip : root - b;
    float below = b > 0.0f ? b + root : 2.0f * (float)g;
    u32 j = (u32)QUOTIENT(above, below);
    j = j < s->count ? j : s->count - 1;
    j = narrows ? s->count - 1 - j : j;
    ROLLED while (j > 0 && affine_before(s, j) > word) j--;
    ROLLED while (j + 1 < s->count && affine_before(s, j + 1) <= word) j++;
    return j;
}

INLINE i64 affine_at(const Affine *s, u32 word, u32 w) {
    u32 instance = divide(word, s->by_size);
    u32 rest = word - instance * s->size;
    u32 j = affine_run(s, rest);
    return (i64)instance * s->extent + (i64)j * s->step + (i64)(rest - affine_before(s, j)) * w;
}

INLINE i64 entry(GLOBAL const u8 *RESTRICT list, u32 wide, u32 index) {
    return wide ? ((GLOBAL const i64 *)list)[index] : (i64)((GLOBAL const i32 *)list)[index];
}

INLINE i64 listed_at(const Listed *s, GLOBAL const u8 *RESTRICT plan, u32 word, u32 w) {
    u32 row = divide(word, s->by_len);
    u32 instance = divide(row, s->by_blocks);
    i64 listed = entry(plan + s->list, s->wide, row - instance * s->blocks);
    return (i64)instance * s->extent + listed * s->scale + (i64)(word - row * s->len) * w;
}

/* The unit that word `rest` of an instance lies in, the block, and a block's shift in bytes. */
INLINE Unit mapped_unit(const Mapped *s, GLOBAL const u8 *RESTRICT plan, u32 rest) {
    return ((GLOBAL const Unit *)(plan + s->units))[rest >> s->finer >> 5];
}

INLINE u32 mapped_in(const Mapped *s, Unit unit, u32 rest) {
    return unit.block + ONES(unit.begins & (0xffffffffu >> (31 - (rest >> s->finer & 31))));
}

INLINE u32 mapped_block(const Mapped *s, GLOBAL const u8 *RESTRICT plan, u32 rest) {
    return mapped_in(s, mapped_unit(s, plan, rest), rest);
}

/* Whether the `skip` words after word `rest` lie in its unit and its instance. */
INLINE u32 mapped_clear(const Mapped *s, u32 rest, u32 skip) {
    return rest >> s->finer >> 5 == (rest + skip) >> s->finer >> 5 && rest + skip < s->size;
}

INLINE i64 mapped_shift(const Mapped *s, GLOBAL const u8 *RESTRICT plan, u32 block) {
    return entry(plan + s->shifts, s->wide, block) * s->scale;
}

INLINE i64 mapped_at(const Mapped *s, GLOBAL const u8 *RESTRICT plan, u32 word, u32 w) {
    u32 instance = divide(word, s->by_size);
    u32 rest = word - instance * s->size;
    i64 shift = mapped_shift(s, plan, mapped_block(s, plan, rest));
    return (i64)instance * s->extent + shift + (i64)rest * w;
}

/* Where a word lies, the position of its page in the user's list, and whether that page is not to be touched. */
typedef struct {
    i64 at;
    u32 position;
    u32 beyond;
} PagePlace;

INLINE PagePlace page_at(const PagesSide *s, GLOBAL const u8 *RESTRICT list, u32 word, u32 w) {
    const Strided *grid = &s->shape;
    u32 row = divide(word, grid->by_len);
    PagePlace place;
    place.at = (i64)(word - row * grid->len) * w;
    ROLLED for (u32 k = grid->dims - 1; k > 0; k--) {
        u32 rest = divide(row, grid->dim[k].by);
        place.at += (i64)(row - rest * grid->dim[k].count) * grid->dim[k].stride;
        row = rest;
    }
    place.position = s->before + row;
    u64 index = row;
    /* Read once: who wrote it may write it again, and what was checked is what is used. */
    if (s->bytes == 4) index = READ_INDEX(u32, list + s->list + (u64)row * 4);
    if (s->bytes == 8) index = READ_INDEX(u64, list + s->list + (u64)row * 8);
    place.beyond = s->bytes != 0 && index > s->last;
    place.at += (i64)(index * (u64)grid->dim[0].stride);
    return place;
}

INLINE i64 side_at(const Side *s, GLOBAL const u8 *RESTRICT plan, u32 word, u32 w) {
    switch (s->kind) {
    case SIDE_STRIDED: return strided_at(&s->strided, word, w);
    case SIDE_AFFINE: return affine_at(&s->affine, word, w);
    case SIDE_LISTED: return listed_at(&s->listed, plan, word, w);
    default: return mapped_at(&s->mapped, plan, word, w);
    }
}

#endif
