package dpu

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Files of a folder of credentials.
const (
	caFile   = "ca.pem"   // who signs the other side's certificate
	certFile = "cert.pem" // this side's, with what is between it and the other side's ca.pem
	keyFile  = "key.pem"
)

// credentials are one side's.
type credentials struct {
	roots *x509.CertPool
	own   tls.Certificate
}

func readCredentials(folder string) (*credentials, error) {
	if folder == "" {
		return nil, fmt.Errorf("a tls endpoint needs credentials: a folder with %s, %s and %s", caFile, certFile, keyFile)
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	info, err := os.Stat(at(keyFile))
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others may read the key: chmod 600 %s", at(keyFile))
	}
	ca, err := os.ReadFile(at(caFile))
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	c := &credentials{roots: x509.NewCertPool()}
	if !c.roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read credentials: %s has no certificate", at(caFile))
	}
	if c.own, err = tls.LoadX509KeyPair(at(certFile), at(keyFile)); err != nil {
		return nil, fmt.Errorf("read credentials in %s: %w", folder, err)
	}
	return c, nil
}

// client is the host's side, which reaches a DPU of this name.
func (c *credentials) client(name string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: c.roots, Certificates: []tls.Certificate{c.own}, ServerName: name}
}

// server is the DPU's side, which serves the host of this name and no other: a certificate that the
// same authority has signed for another purpose, or for another host, opens nothing.
func (c *credentials) server(client string) *tls.Config {
	protocols := make([]string, len(Services))
	for i, s := range Services {
		protocols[i] = string(s)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientCAs: c.roots, Certificates: []tls.Certificate{c.own},
		ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: protocols,
		// A resumed session would skip VerifyPeerCertificate; VerifyConnection is never skipped.
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the client has no certificate")
			}
			if err := state.PeerCertificates[0].VerifyHostname(client); err != nil {
				return fmt.Errorf("the client is not %s: %w", client, err)
			}
			if state.NegotiatedProtocol == "" {
				return errors.New("the client names no service (ALPN)")
			}
			return nil
		},
	}
}
