package dpu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Health is what the DPU says of itself. The service sends it when a connection begins, when it
// changes, and each Interval, a line of JSON at a time.
type Health struct {
	// Generation is another one after each start of ovs-vswitchd: the flows of the last are gone.
	Generation string `json:"generation"`
	// Fault says why the switch does not work; empty if it does.
	Fault string `json:"fault"`
	// Tunnel is the address of the switch to which other nodes send VXLAN.
	Tunnel netip.Addr `json:"tunnel"`
	// Masquerade is the address that pods' packets to outside have as their source. It is on the
	// uplink, and none of Tunnel. Not valid: pods do not reach the outside.
	Masquerade netip.Addr `json:"masquerade"`
	// MasqueradeMAC answers for Masquerade on the uplink.
	MasqueradeMAC MAC `json:"masquerade_mac"`
	// GatewayMAC is that of the uplink's gateway; zero as long as the gateway does not answer.
	GatewayMAC MAC `json:"gateway_mac"`
	// MTU is the uplink's, in bytes.
	MTU int `json:"mtu"`
	// TunnelPort and OutsidePort are ports of the bridge, by their OpenFlow numbers: to other nodes,
	// and to the outside. 0: there is none.
	TunnelPort  int `json:"tunnel_port"`
	OutsidePort int `json:"outside_port"`
	// Representors are those that the DPU has, by name.
	Representors []string `json:"representors"`
	// Offload says who forwards packets: "software", or "hardware" if the card does.
	Offload string `json:"offload"`
}

// MAC is a MAC address, a text in JSON. The zero MAC is none.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText writes nothing for the zero MAC.
func (m MAC) MarshalText() ([]byte, error) {
	if m == (MAC{}) {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (m *MAC) UnmarshalText(text []byte) error {
	*m = MAC{}
	if len(text) == 0 {
		return nil
	}
	mac, err := net.ParseMAC(string(text))
	if err != nil || len(mac) != len(m) {
		return fmt.Errorf("%q is no MAC address", text)
	}
	copy(m[:], mac)
	return nil
}

// Intervals of the service.
const (
	Interval = time.Second     // between two lines, if nothing changes
	silence  = 5 * time.Second // after which the DPU is taken to be gone
)

// tunnelOverhead is VXLAN's over IPv6, in bytes: Ethernet, IPv6, UDP, VXLAN (RFC 7348, section 5).
const (
	tunnelOverhead4 = 14 + 20 + 8 + 8
	tunnelOverhead6 = 14 + 40 + 8 + 8
)

// PodMTU is the MTU of pods whose packets fit into the tunnel.
func (h *Health) PodMTU() int {
	if h.Tunnel.Is6() {
		return h.MTU - tunnelOverhead6
	}
	return h.MTU - tunnelOverhead4
}

// lineMax is the size of a line, in bytes. A thousand representors have less.
const lineMax = 64 << 10

// HealthReader reads the service's lines.
type HealthReader struct {
	host  *Host
	conn  net.Conn
	lines *bufio.Scanner
}

// Health connects to the service.
func (h *Host) Health(ctx context.Context) (*HealthReader, error) {
	conn, err := h.Dial(ctx, HealthOf)
	if err != nil {
		return nil, err
	}
	r := &HealthReader{host: h, conn: conn, lines: bufio.NewScanner(conn)}
	r.lines.Buffer(nil, lineMax)
	return r, nil
}

// Next waits for a line. An error is an UnreachableError: also if none comes for 5 seconds.
func (r *HealthReader) Next() (*Health, error) {
	health, err := r.next()
	if err != nil {
		return nil, &UnreachableError{r.host.String(), err}
	}
	return health, nil
}

func (r *HealthReader) next() (*Health, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return nil, err
	}
	if !r.lines.Scan() {
		if err := r.lines.Err(); err != nil {
			return nil, err
		}
		return nil, errors.New("the DPU ends the connection")
	}
	health := &Health{}
	if err := json.Unmarshal(r.lines.Bytes(), health); err != nil {
		return nil, fmt.Errorf("read health: %w", err)
	}
	return health, nil
}

// Close ends the connection, and Next.
func (r *HealthReader) Close() error { return r.conn.Close() }

// FaultError says that the DPU's switch does not work.
type FaultError struct{ Endpoint, Fault string }

func (e *FaultError) Error() string {
	return fmt.Sprintf("the switch of the DPU at %s does not work: %s", e.Endpoint, e.Fault)
}

// Healthy returns the DPU's health, or an error that says what to do: a FaultError or an
// UnreachableError.
func (h *Host) Healthy(ctx context.Context) (*Health, error) {
	r, err := h.Health(ctx)
	if err != nil {
		return nil, err
	}
	health, err := r.Next()
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if health.Fault != "" {
		return nil, &FaultError{h.String(), health.Fault}
	}
	return health, nil
}
