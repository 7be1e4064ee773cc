package policy

import (
	"fmt"
	"strings"
)

// Protocol is a transport protocol that a rule is for; 0 stands for both.
type Protocol int

// The protocols, with the numbers of IP (IPPROTO_TCP and IPPROTO_UDP).
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// String returns the protocol as it stands after the ports of a rule.
func (p Protocol) String() string {
	switch p {
	case 0:
		return ""
	case TCP:
		return "/tcp"
	case UDP:
		return "/udp"
	}
	return fmt.Sprintf("/%d", int(p))
}

// Meets tells whether rules for two protocols can cover the same socket.
func (p Protocol) Meets(other Protocol) bool { return p == 0 || other == 0 || p == other }

// CutProtocol cuts "/tcp" or "/udp" from the end of a text.
func CutProtocol(s string) (rest string, p Protocol) {
	for _, p := range []Protocol{TCP, UDP} {
		if rest, is := strings.CutSuffix(s, p.String()); is {
			return rest, p
		}
	}
	return s, 0
}
