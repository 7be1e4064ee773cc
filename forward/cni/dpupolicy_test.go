package cni

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// talk is a flow that a test asks whether it passes.
type talk struct {
	t      *testing.T
	server *net.UDPConn
	client *net.UDPConn
	last   int // number of the last datagram of passes
}

func (n *node) talk(from, to *pod, port int) *talk {
	n.rig.t.Helper()
	k := &talk{t: n.rig.t}
	must(k.t, to.ns.Do(func() (err error) {
		k.server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.addrs[0], uint16(port))))
		return err
	}))
	must(k.t, from.ns.Do(func() (err error) {
		k.client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.addrs[0], uint16(port))))
		return err
	}))
	go testkit.AnswerDatagrams(k.server, testkit.Echo)
	k.t.Cleanup(func() { k.server.Close(); k.client.Close() })
	return k
}

// passes sends datagrams until one of them has an answer. Answers to those of before may come late.
func (k *talk) passes() {
	k.t.Helper()
	first := k.last + 1
	buf := make([]byte, 10)
	testkit.Eventually(k.t, func() error {
		k.last++
		if _, err := k.client.Write([]byte(strconv.Itoa(k.last))); err != nil {
			return err
		}
		must(k.t, k.client.SetReadDeadline(time.Now().Add(time.Second)))
		for {
			n, err := k.client.Read(buf)
			if err != nil {
				return err
			}
			if number, err := strconv.Atoi(string(buf[:n])); err == nil && number >= first {
				return nil
			}
		}
	})
}

// stopped sends datagrams, and then one of another flow on the same road that has an answer: so those
// were dropped.
func (k *talk) stopped(open *talk) {
	k.t.Helper()
	for range 3 {
		_, err := k.client.Write([]byte("no"))
		must(k.t, err)
	}
	open.passes()
	must(k.t, k.client.SetReadDeadline(time.Now().Add(time.Millisecond)))
	for buf := make([]byte, 10); ; {
		n, err := k.client.Read(buf)
		if err != nil {
			break
		}
		if string(buf[:n]) == "no" {
			k.t.Error("an answer came")
		}
	}
}

// A policy that changes in the middle of flows stops them, and lets them pass again: direct flows, and
// flows to the outside.
func TestDPUPolicy(t *testing.T) {
	f := newFabric(t)
	n := f.newNode(1)
	network := n.network(object{})
	all := network.pods(2)
	a, b := all[0], all[1]
	out := &pod{ns: f.ns, addrs: []netip.Addr{outside}}
	denied, open := n.talk(a, b, 1001), n.talk(a, b, 1002)
	far, farOpen := n.talk(a, out, 1001), n.talk(a, out, 1002)
	for _, k := range []*talk{denied, open, far, farOpen} {
		k.passes()
	}
	if c := n.counts(network, a); c["direct"] == 0 {
		t.Errorf("nothing went directly: %v", c)
	}
	rule := func(action, more string) string {
		return fmt.Sprintf("[[policy.rule]]\naction = %q\nprotocol = \"udp\"\nports = [1001]\n%s\n", action, more)
	}
	n.policy(rule("deny", ""))
	denied.stopped(open)
	far.stopped(farOpen)
	if c := n.counts(network, a); c["pair"] == 0 {
		t.Errorf("the pair is still direct: %v", c)
	}
	n.policy(rule("allow", fmt.Sprintf("to = \"%s/32\"", b.addrs[0])) + rule("deny", ""))
	denied.passes()
	far.stopped(farOpen)
	n.policy("default = \"deny\"\n" + rule("allow", "") + strings.Replace(rule("allow", ""), "1001", "1002", 1))
	denied.passes()
	far.passes()
	other := n.talk(a, b, 1003)
	other.stopped(open)
	n.policy("")
	other.passes()
	must(t, errors.Join(network.del(a), network.del(b)))
	n.empty(network)
}

// policy has the controller read a policy, and waits until its flows are in the switch.
func (n *node) policy(text string) {
	n.rig.t.Helper()
	before := strings.Count(n.control.said.String(), "flows were changed")
	n.startControl("[policy]\n" + text)
	testkit.Eventually(n.rig.t, func() error {
		if strings.Count(n.control.said.String(), "flows were changed") == before {
			return errors.New("no flow was changed")
		}
		return nil
	})
}

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	a := &authority{t: t, key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	return a
}

// credentials makes a folder of credentials for a name.
func (a *authority) credentials(name string, usage x509.ExtKeyUsage, ips ...net.IP) string {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	own := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}, IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	ca, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &a.key.PublicKey, a.key)
	must(a.t, err)
	cert, err := x509.CreateCertificate(rand.Reader, own, a.cert, &key.PublicKey, a.key)
	must(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(a.t, err)
	dir := a.t.TempDir()
	for file, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: ca}, "cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		must(a.t, os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600))
	}
	return dir
}

// The same over TLS: the DPU serves its own host, and refuses others with a line.
func TestDPUOverTLS(t *testing.T) {
	f := newFabric(t)
	n := f.bareNode(1)
	management(t, n)
	a := newAuthority(t)
	n.endpoint = "tls:203.0.113.2:9471"
	n.secret = a.credentials("node1", x509.ExtKeyUsageClientAuth)
	n.more = [][]string{{"--credentials", a.credentials("dpu1", x509.ExtKeyUsageServerAuth, net.IPv4(203, 0, 113, 2)), "--client", "node1"}}
	n.startAgent()
	n.startControl("")
	network := n.network(object{})
	all := network.pods(2)
	n.echo(all[0], all[1])
	n.echo(all[0], &pod{ns: f.ns, addrs: []netip.Addr{outside}})
	for name, secret := range map[string]string{
		"another host":    a.credentials("node2", x509.ExtKeyUsageClientAuth),
		"a server":        a.credentials("node1", x509.ExtKeyUsageServerAuth),
		"somebody else's": newAuthority(t).credentials("node1", x509.ExtKeyUsageClientAuth),
	} {
		before := strings.Count(n.agent.said.String(), "refused a connection")
		good := n.secret
		n.secret = secret
		_, err := n.unready(object{}).add(network.newPod("stranger"))
		n.secret = good
		if err == nil || !strings.Contains(err.Error(), "203.0.113.2:9471") {
			t.Errorf("%s: %v", name, err)
		}
		testkit.Eventually(t, func() error {
			if strings.Count(n.agent.said.String(), "refused a connection") == before {
				return errors.New("the DPU's agent says nothing of " + name)
			}
			return nil
		})
	}
	must(t, errors.Join(network.del(all[0]), network.del(all[1])))
	n.empty(network)
}
