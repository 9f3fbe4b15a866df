//! One connection: TCP, with TLS where the peer is not on this host.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Unprotected: the peer is on this host.
    Plain(TcpStream),
    /// TLS.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.sock,
        }
    }

    /// Lets TLS begin, so that what follows takes one round trip.
    pub(crate) fn shake_hands(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.conn.complete_io(&mut tls.sock).map(drop),
        }
    }

    /// Writes `header` and then `data`.
    ///
    /// # Errors
    /// Those of writing.
    pub fn send(&mut self, header: &[u8], data: &[u8]) -> io::Result<()> {
        let sent = match self {
            Self::Plain(socket) => {
                socket.write_vectored(&[IoSlice::new(header), IoSlice::new(data)])?
            }
            Self::Tls(_) => 0,
        };
        self.write_all(header.get(sent..).unwrap_or_default())?;
        let sent = sent.saturating_sub(header.len());
        self.write_all(data.get(sent..).unwrap_or_default())?;
        self.flush()
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(to),
            Self::Tls(tls) => tls.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(from),
            Self::Tls(tls) => tls.write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// Small messages at once, and a cut link noticed within some six seconds.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(2))
        .with_interval(Duration::from_secs(1))
        .with_retries(4);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// TLS over `socket`, with a peer whose certificate has this SHA-256.
///
/// # Errors
/// [`Error`] where there is no such client.
pub(crate) fn secure(socket: TcpStream, sha256: [u8; 32]) -> Result<Stream, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pinned = Pinned {
        sha256,
        provider: Arc::clone(&provider),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    let name = ServerName::try_from("ghost").map_err(|e| Error::General(e.to_string()))?;
    let client = ClientConnection::new(Arc::new(config), name)?;
    Ok(Stream::Tls(Box::new(StreamOwned::new(client, socket))))
}

/// The certificate itself is known, not who vouches for it.
#[derive(Debug)]
struct Pinned {
    sha256: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let sha256 = ring::digest::digest(&ring::digest::SHA256, certificate);
        if sha256.as_ref() == self.sha256 {
            Ok(ServerCertVerified::assertion())
        } else {
            let why = "its certificate is another than the one that this host knows: add the peer \
                       again with `ghostctl peer add`";
            Err(Error::General(why.to_owned()))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection};
    use std::net::TcpListener;

    /// What a client that pins `sha256` reads from a server; the certificate's own where it is
    /// `None`.
    fn talk(sha256: Option<[u8; 32]>) -> io::Result<Vec<u8>> {
        let made = rcgen::generate_simple_self_signed(["peer".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let own = ring::digest::digest(&ring::digest::SHA256, &certificate);
        let own: [u8; 32] = own.as_ref().try_into().unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || -> io::Result<()> {
            let (socket, _) = listener.accept()?;
            let server = ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
            let mut stream = StreamOwned::new(server, socket);
            let mut said = [0; 6];
            stream.read_exact(&mut said)?;
            stream.write_all(&said)?;
            stream.flush()
        });
        let socket = TcpStream::connect(address)?;
        tune(&socket)?;
        let mut stream = secure(socket, sha256.unwrap_or(own)).map_err(io::Error::other)?;
        stream.send(b"abc", b"def")?;
        let mut back = vec![0; 6];
        stream.read_exact(&mut back)?;
        serving.join().unwrap()?;
        Ok(back)
    }

    #[test]
    fn only_the_certificate_that_is_known_is_talked_to() {
        assert_eq!(talk(None).unwrap(), b"abcdef");
        let other = talk(Some([7; 32])).unwrap_err().to_string();
        assert!(other.contains("ghostctl peer add"), "{other}");
    }

    #[test]
    fn header_and_data_arrive_as_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let data = vec![5; 3 << 20];
        let reading = std::thread::spawn(move || {
            let mut all = vec![];
            listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
            all
        });
        let mut stream = Stream::Plain(TcpStream::connect(address).unwrap());
        stream.send(b"head", &data).unwrap();
        stream.send(b"tail", &[]).unwrap();
        drop(stream);
        let all = reading.join().unwrap();
        assert_eq!(all.len(), data.len() + 8);
        assert!(all.starts_with(b"head\x05") && all.ends_with(b"\x05tail"));
    }
}
