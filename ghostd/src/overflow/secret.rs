//! What a host shows and what it asks for: the certificate of TLS, made at the first start, and
//! the token.

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The fewest bytes of a token: fewer could be guessed.
const SHORTEST: usize = 16;
/// Bytes of a token that is made here, before they become text.
const MADE: usize = 32;

/// Why there is no certificate, or no token.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A file cannot be used.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is in it is no certificate with its key.
    #[error("{path}: {source}: remove it, and ghostd makes another at its next start")]
    Pem {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: pem::Error,
    },
    /// A certificate cannot be made.
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// TLS does not take it.
    #[error("{path}: TLS does not take it: {source}")]
    Tls {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: tokio_rustls::rustls::Error,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// Everybody may read it.
    #[error("{0}: everybody may read it: `chmod o= {0}`")]
    Open(PathBuf),
    /// It is guessable.
    #[error(
        "{path}: a token of {len} bytes: write at least {SHORTEST}, such as those of `openssl rand -hex 32`"
    )]
    Short {
        /// Which.
        path: PathBuf,
        /// How long it is.
        len: usize,
    },
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> SecretError {
    let path = path.to_owned();
    move |source| SecretError::File { path, source }
}

/// A directory that only ghostd's user may enter.
fn private(dir: &Path) -> Result<(), SecretError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(failed(dir))
}

/// Writes a file that only its owner may read, whole or not at all.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), SecretError> {
    if let Some(dir) = path.parent() {
        private(dir)?;
    }
    let new = path.with_extension("new");
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(failed(path))
}

/// What TLS shows to clients.
#[derive(Clone)]
pub(super) struct Identity {
    /// SHA-256 of the certificate, hexadecimal.
    pub(super) fingerprint: String,
    /// Begins TLS on a connection.
    pub(super) acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.fingerprint)
    }
}

/// The certificate and its key in `path`, made if they are not there. Both are in one file, so that
/// neither is ever there without the other.
///
/// # Errors
/// [`SecretError`]
pub(super) fn identity(path: &Path) -> Result<Identity, SecretError> {
    let text = match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let made = rcgen::generate_simple_self_signed(vec!["ghost".to_owned()])?;
            let text = made.cert.pem() + &made.signing_key.serialize_pem();
            write_private(path, &text)?;
            text.into_bytes()
        }
        read => read.map_err(failed(path))?,
    };
    let broken = |source| SecretError::Pem {
        path: path.to_owned(),
        source,
    };
    let certificate = CertificateDer::from_pem_slice(&text).map_err(broken)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(broken)?;
    let fingerprint = hex(digest(&SHA256, &certificate).as_ref());
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            let config = config.with_no_client_auth();
            config.with_single_cert(vec![certificate], key)
        });
    let config = config.map_err(|source| SecretError::Tls {
        path: path.to_owned(),
        source,
    })?;
    Ok(Identity {
        fingerprint,
        acceptor: TlsAcceptor::from(Arc::new(config)),
    })
}

/// A secret that clients must know. Kept as its hash, which compares in constant time.
#[derive(Clone)]
pub(super) struct Token(blake3::Hash);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Whether this is it.
    pub(super) fn is(&self, text: &str) -> bool {
        self.0 == blake3::hash(text.as_bytes())
    }

    /// The token in `path`; with `make`, one is made there if there is none.
    ///
    /// # Errors
    /// [`SecretError`]
    pub(super) fn read(path: &Path, make: bool) -> Result<Token, SecretError> {
        match read_token(path) {
            Err(SecretError::File { source, .. })
                if make && source.kind() == io::ErrorKind::NotFound =>
            {
                let mut bytes = [0; MADE];
                let filled = SystemRandom::new().fill(&mut bytes);
                filled.map_err(|_| SecretError::Random)?;
                let text = hex(&bytes);
                write_private(path, &format!("{text}\n"))?;
                Ok(Token(blake3::hash(text.as_bytes())))
            }
            read => Ok(Token(blake3::hash(read?.as_bytes()))),
        }
    }
}

/// The token in a file, without the space around it.
fn read_token(path: &Path) -> Result<String, SecretError> {
    let text = fs::read_to_string(path).map_err(failed(path))?;
    let mode = fs::metadata(path).map_err(failed(path))?.mode();
    if mode & 0o007 != 0 {
        return Err(SecretError::Open(path.to_owned()));
    }
    let token = text.trim();
    if token.len() < SHORTEST {
        return Err(SecretError::Short {
            path: path.to_owned(),
            len: token.len(),
        });
    }
    Ok(token.to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a string does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_certificate_is_made_once_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overflow/identity.pem");
        let made = identity(&path).unwrap();
        assert_eq!(made.fingerprint.len(), 64);
        assert_eq!(identity(&path).unwrap().fingerprint, made.fingerprint);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        fs::write(&path, "no certificate").unwrap();
        let why = identity(&path).unwrap_err().to_string();
        assert!(
            why.contains("identity.pem") && why.contains("remove it"),
            "{why}"
        );
    }

    #[test]
    fn a_token_is_made_once_private_and_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(Token::read(&path, false).is_err());
        let token = Token::read(&path, true).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!((text.trim().len(), mode(&path)), (2 * MADE, 0o600));
        assert!(token.is(text.trim()) && !token.is("") && !token.is(&text));
        assert!(Token::read(&path, true).unwrap().is(text.trim()));
        fs::write(&path, "short\n").unwrap();
        let why = Token::read(&path, true).unwrap_err().to_string();
        assert!(why.contains("a token of 5 bytes"), "{why}");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let why = Token::read(&path, true).unwrap_err().to_string();
        assert!(why.contains("chmod"), "{why}");
    }
}
