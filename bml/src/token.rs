//! The owner of a token: the upper 8 bits of a token on a rail name the handler that is told of its end.

use gapless_btl::Token;

/// The tokens of one handler. [`Bml::send`](crate::Bml::send) stamps by the message's tag; for
/// operations that go to a transport directly ([`Bml::rdma`](crate::Bml::rdma)) the caller stamps
/// with [`TokenSpace::token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSpace(u8);

/// Bits of a token that belong to its handler.
const VALUE_BITS: u32 = 56;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

impl TokenSpace {
    /// The tokens of the handler given to [`Bml::poll`](crate::Bml::poll). Its stamp is 0: tokens up
    /// to [`TokenSpace::MAX`] pass unchanged.
    pub const REST: TokenSpace = TokenSpace(0);

    /// The largest value a handler can put in a token.
    pub const MAX: u64 = VALUE_MASK;

    /// The space of handler `number`; 255 stays free for [`Token::NONE`].
    pub(crate) fn of(number: u8) -> TokenSpace {
        debug_assert!(number < u8::MAX);
        TokenSpace(number)
    }

    /// The stamped token whose event will carry `value`; `None` above [`TokenSpace::MAX`].
    #[must_use]
    pub fn token(self, value: u64) -> Option<Token> {
        (value <= VALUE_MASK).then(|| self.stamp(Token(value)))
    }

    /// Stamps a token, keeping its lower 56 bits; [`Token::NONE`] stays.
    pub(crate) fn stamp(self, token: Token) -> Token {
        if token == Token::NONE {
            return token;
        }
        debug_assert!(token.0 <= VALUE_MASK, "a token has {VALUE_BITS} bits");
        Token((u64::from(self.0) << VALUE_BITS) | (token.0 & VALUE_MASK))
    }

    /// Splits a stamped token into the handler's number and the handler's value.
    pub(crate) fn unstamp(token: Token) -> (u8, Token) {
        (token.0.to_be_bytes()[0], Token(token.0 & VALUE_MASK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_come_off_again() {
        let space = TokenSpace::of(7);
        assert_eq!(TokenSpace::unstamp(space.token(12).unwrap()), (7, Token(12)));
        assert_eq!(TokenSpace::unstamp(space.stamp(Token(VALUE_MASK))), (7, Token(VALUE_MASK)));
        assert_eq!(space.token(VALUE_MASK + 1), None);
        assert_eq!(space.stamp(Token::NONE), Token::NONE);
        assert_eq!(TokenSpace::REST.token(12), Some(Token(12)));
        assert_ne!(TokenSpace::of(254).token(VALUE_MASK), Some(Token::NONE));
    }
}
