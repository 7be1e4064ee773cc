// Package dpu is the contract between a host and its DPU, a card with processors of its own on
// which the host's Open vSwitch runs.
//
// The DPU forwards two sockets of Open vSwitch to the host and tells of its health; the host asks
// for nothing else. Both sides use this package: it has the endpoint's grammar, the connections and
// the message about health. It owns no connection and decides nothing. It needs to read the files
// of the credentials, which are root's.
//
// Whoever may connect is root over the DPU's Open vSwitch: the database can be told to load a
// certificate from any file, to write a log to any file, and to send every packet anywhere. So a
// unix socket is root's alone, and TLS takes one name of the host's certificate.
package dpu

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Service is one of those that the DPU forwards.
type Service string

// The services. A name is that of the protocol in TLS (ALPN, RFC 7301).
const (
	OVSDB    Service = "tsugiki-ovsdb"    // of ovsdb-server
	OpenFlow Service = "tsugiki-openflow" // of the bridge br-int
	HealthOf Service = "tsugiki-health"   // Health, a line of JSON at a time
)

// Services are all of them.
var Services = []Service{OVSDB, OpenFlow, HealthOf}

// SocketName is the name of a service's socket in the folder of a unix endpoint. The first two are
// named as Open vSwitch names them.
func (s Service) SocketName() string {
	return map[Service]string{OVSDB: "db.sock", OpenFlow: Bridge + ".mgmt", HealthOf: "health.sock"}[s]
}

// Bridge is the name of the bridge that the host controls.
const Bridge = "br-int"

// GatewayMAC is the MAC address of each pod's gateway, on all nodes.
var GatewayMAC = MAC{0x02, 't', 's', 'u', 'g', 'i'}

// dialTimeout is how long a connection may take to be made, and its handshake.
const dialTimeout = 5 * time.Second

// Endpoint is where the DPU forwards the services: unix:FOLDER or tls:HOST:PORT.
type Endpoint struct {
	text    string
	network string // unix or tcp
	address string // a folder, or HOST:PORT
}

// ParseEndpoint reads an endpoint.
func ParseEndpoint(text string) (Endpoint, error) {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "unix":
		if filepath.IsAbs(rest) && filepath.Clean(rest) == rest {
			return Endpoint{text, "unix", rest}, nil
		}
	case "tls":
		if host, port, err := net.SplitHostPort(rest); err == nil && host != "" && port != "" {
			return Endpoint{text, "tcp", rest}, nil
		}
	}
	return Endpoint{}, fmt.Errorf("endpoint %q is neither unix:/FOLDER nor tls:HOST:PORT", text)
}

func (e Endpoint) String() string { return e.text }

// TLS tells whether the endpoint needs credentials.
func (e Endpoint) TLS() bool { return e.network == "tcp" }

// Folder is the folder of a unix endpoint.
func (e Endpoint) Folder() string { return e.address }

// Host is the way from a host to its DPU.
type Host struct {
	endpoint Endpoint
	config   *tls.Config // nil for a unix endpoint
}

// NewHost reads the host's credentials, if the endpoint needs them.
func NewHost(endpoint, credentials string) (*Host, error) {
	e, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	h := &Host{endpoint: e}
	if !e.TLS() {
		return h, nil
	}
	c, err := readCredentials(credentials)
	if err != nil {
		return nil, err
	}
	name, _, err := net.SplitHostPort(e.address)
	if err != nil {
		return nil, err
	}
	h.config = c.client(name)
	return h, nil
}

func (h *Host) String() string { return h.endpoint.String() }

// UnreachableError says that the DPU cannot be reached, and what to do.
type UnreachableError struct {
	Endpoint string
	Err      error
}

func (e *UnreachableError) Error() string {
	why := "look whether tsugiki dpu-agent runs there"
	var alert tls.AlertError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(e.Err, &alert):
		why = "look at tsugiki dpu-agent's log there, which says why it refuses this host's certificate"
	case errors.As(e.Err, &certificate):
		why = "look whether the DPU's certificate is signed by ca.pem of the credentials and has the endpoint's name"
	}
	return fmt.Sprintf("reach the DPU at %s: %v; %s", e.Endpoint, e.Err, why)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Dial connects to a service. An error is an UnreachableError. Of TLS 1.3, the answer to the host's
// certificate comes only with the first bytes of the service.
func (h *Host) Dial(ctx context.Context, s Service) (net.Conn, error) {
	conn, err := h.dial(ctx, s)
	if err != nil {
		return nil, &UnreachableError{h.endpoint.String(), err}
	}
	return conn, nil
}

func (h *Host) dial(ctx context.Context, s Service) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: dialTimeout, Interval: dialTimeout, Count: 2}}
	if h.config == nil {
		return d.DialContext(ctx, "unix", filepath.Join(h.endpoint.Folder(), s.SocketName()))
	}
	config := h.config.Clone()
	config.NextProtos = []string{string(s)}
	return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, "tcp", h.endpoint.address)
}

// Listen opens the sockets of an endpoint for the DPU's side: one for each service, or one for all.
// The folder of a unix endpoint is made; it has to be root's alone, as the sockets are. A socket that was left
// by another process is replaced.
func Listen(e Endpoint, credentials, client string) (map[Service]net.Listener, *tls.Config, error) {
	if e.TLS() {
		c, err := readCredentials(credentials)
		if err != nil {
			return nil, nil, err
		}
		l, err := net.Listen("tcp", e.address)
		if err != nil {
			return nil, nil, err
		}
		return map[Service]net.Listener{"": l}, c.server(client), nil
	}
	if err := makeFolder(e.Folder()); err != nil {
		return nil, nil, err
	}
	list := map[Service]net.Listener{}
	for _, s := range Services {
		path := filepath.Join(e.Folder(), s.SocketName())
		err := removeStale(path)
		if err == nil {
			list[s], err = net.Listen("unix", path)
		}
		if err != nil {
			delete(list, s)
			for _, l := range list {
				err = errors.Join(err, l.Close())
			}
			return nil, nil, err
		}
	}
	return list, nil, nil
}

// makeFolder makes a folder for sockets, if there is none. One that others may enter, or whose owner
// is another user, who may replace the sockets, is an error. So is a symbolic link.
func makeFolder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("examine %s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is a symbolic link; name the folder where it leads", path)
	case st.Uid != 0:
		return fmt.Errorf("the folder %s is user %d's, and its sockets are root's: chown root %s", path, st.Uid, path)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("others may enter the folder %s, and its sockets are root's: chmod 700 %s", path, path)
	}
	return nil
}

// removeStale removes a socket on which nobody listens.
func removeStale(path string) error {
	conn, err := net.Dial("unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("another process listens at %s", path), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Socket is the path of a service's socket; empty for a tls endpoint.
func (h *Host) Socket(s Service) string {
	if h.endpoint.TLS() {
		return ""
	}
	return filepath.Join(h.endpoint.Folder(), s.SocketName())
}
