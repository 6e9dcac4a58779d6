//! The key of each end, and the check of the peer's.
//!
//! The seed of an end's Ed25519 key is BLAKE3 of its rank and id, keyed with the key of the job. An id belongs to one
//! transport of one process and is never used again, so a connection cannot be passed off as one of another rail.

use crate::address::TcpAddress;
use crate::proof::Keys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConfig};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ServerConfig};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    SignatureScheme,
};
use std::sync::Arc;

/// The bytes before the seed of an Ed25519 key in PKCS #8 (RFC 8410).
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// The private key of an end, and the public key as it is sent.
fn key(
    keys: &Keys,
    end: &TcpAddress,
) -> Result<(Arc<dyn SigningKey>, CertificateDer<'static>), Error> {
    let mut private = PKCS8_HEAD.to_vec();
    private.extend_from_slice(&keys.seed(end.rank, &end.id));
    let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(private))?;
    let public = key.public_key().ok_or(Error::General("a key without public half".to_owned()))?;
    let public = CertificateDer::from(public.as_ref().to_vec());
    Ok((key, public))
}

/// The algorithms: one of each kind, so that there is nothing to negotiate.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    }
}

type Parts = (Arc<CryptoProvider>, Arc<CertifiedKey>, Arc<Expected>);

/// What both ends of a connection need: the algorithms, the own key, and the check of the peer's.
fn both(keys: &Keys, own: &TcpAddress, peer: &TcpAddress) -> Result<Parts, Error> {
    let provider = Arc::new(provider());
    let (own, public) = key(keys, own)?;
    let own = Arc::new(CertifiedKey::new(vec![public], own));
    let (_, public) = key(keys, peer)?;
    let expected = Arc::new(Expected { public, provider: Arc::clone(&provider) });
    Ok((provider, own, expected))
}

/// The configuration of a caller.
pub(super) fn client(
    keys: &Keys,
    own: &TcpAddress,
    peer: &TcpAddress,
) -> Result<ClientConfig, Error> {
    let (provider, own, expected) = both(keys, own, peer)?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(expected)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
    config.enable_sni = false;
    config.enable_secret_extraction = true;
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// The configuration of a listener.
pub(super) fn server(
    keys: &Keys,
    own: &TcpAddress,
    peer: &TcpAddress,
) -> Result<ServerConfig, Error> {
    let (provider, own, expected) = both(keys, own, peer)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(expected)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.enable_secret_extraction = true;
    Ok(config)
}

/// The one key that the peer may have.
#[derive(Debug)]
struct Expected {
    public: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Expected {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match *shown == self.public {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}

/// The part that [`ServerCertVerifier`] and [`ClientCertVerifier`] have in common: Ed25519 over a raw public key, in
/// TLS 1.3 and nothing older.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
            let known = &self.provider.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signed, known)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
