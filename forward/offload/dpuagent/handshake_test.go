package dpuagent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/forward/offload/dpu"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// credentials are those of 127.0.0.1, as a host and as a DPU.
func credentials(t *testing.T) (folder string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, own, own, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder = t.TempDir()
	for name, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: cert}, "cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// Connections that say nothing, more than there are places, do not keep the host out.
func TestSilentConnections(t *testing.T) {
	testkit.CheckLeaks(t)
	folder := credentials(t)
	endpoint, err := dpu.ParseEndpoint("tls:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listeners, config, err := dpu.Listen(endpoint, folder, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{Config: right(), log: slog.New(slog.DiscardHandler), board: newBoard()}
	a.board.put(dpu.Health{Generation: "1"})
	t.Cleanup(a.serveAt(listeners, config))
	at := listeners[""].Addr().String()
	for i := range 3 * connectionsMax {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%2))}
		c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	host, err := dpu.NewHost("tls:"+at, folder)
	if err != nil {
		t.Fatal(err)
	}
	r, err := host.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if h, err := r.Next(); err != nil || h.Generation != "1" {
		t.Errorf("%+v, %v", h, err)
	}
}

// One address, or one network of IPv6, has a part of the handshakes, and gets it back.
func TestHandshakes(t *testing.T) {
	s := newServer(t.Context(), nil, nil)
	from := func(addr string) netip.Prefix {
		t.Helper()
		p, err := source(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 1)))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for i := range handshakesOfOne {
		if err := s.begin(from(fmt.Sprintf("2001:db8::%x", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	if s.begin(from("2001:db8::ffff")) == nil {
		t.Error("one network has more than its part")
	}
	for i := range handshakesMax - handshakesOfOne {
		if err := s.begin(from(fmt.Sprintf("::ffff:192.0.2.%d", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	if s.begin(from("192.0.2.200")) == nil {
		t.Error("there are more handshakes than may be")
	}
	s.end(from("192.0.2.1"))
	if err := s.begin(from("192.0.2.200")); err != nil {
		t.Error(err)
	}
	if n := len(s.handshakes); n != 1+handshakesMax-handshakesOfOne {
		t.Errorf("%d sources are counted", n)
	}
}
