// Package card names the virtual functions (VFs) of a network card and their representors, and
// sets the card up for a switch that runs on it.
//
// A VF is a link of the host. Its representor is a link of the DPU: what is sent to one comes out
// of the other. There is a card of hardware (SR-IOV, devlink), and one of links of the kernel, which
// emulate it. It owns no link but those that Emulate makes, and decides about no pod.
//
// Each function works in the calling thread's network namespace. Reading takes no privilege;
// changes need CAP_NET_ADMIN. Linux 4.8 (the eswitch modes of devlink).
package card

import (
	"fmt"
	"regexp"
	"strconv"
)

// VF is a virtual function.
type VF struct {
	PF, Number int    // of its physical function, and its own
	Link       string // its name on the host
}

// Representor is the name of the VF's representor on the DPU. The host does not see that link.
func (v VF) Representor() string { return RepresentorName(v.PF, v.Number) }

// RepresentorName is the name that the DPU gives representors.
func RepresentorName(pf, vf int) string { return fmt.Sprintf("rep%d-%d", pf, vf) }

var representorPattern = regexp.MustCompile(`^rep(\d{1,2})-(\d{1,4})$`)

// IsRepresentor tells whether a link's name is that of a representor.
func IsRepresentor(name string) bool { return representorPattern.MatchString(name) }

// portFirst is the first OpenFlow number of representors. The bridge's other ports have lower ones.
const (
	portFirst = 256
	perPF     = 4096 // VFs of a PF
	pfs       = 15   // portFirst + pfs*perPF is below OFPP_MAX (0xff00, OpenFlow 1.0)
)

// PortNumber is the number to ask for in OpenFlow for a representor; 0 if the name is of none, or
// has no number of its own. The switch may give another one.
func PortNumber(name string) int {
	m := representorPattern.FindStringSubmatch(name)
	if m == nil {
		return 0
	}
	pf, _ := strconv.Atoi(m[1])
	vf, _ := strconv.Atoi(m[2])
	if pf >= pfs || vf >= perPF {
		return 0
	}
	return portFirst + pf*perPF + vf
}

// Host is the card as the host sees it.
type Host interface {
	// VFs lists those that are links of this namespace, in the order of their numbers.
	VFs() ([]VF, error)
}

// DPU is the card as the DPU sees it.
type DPU interface {
	// Prepare puts the card into the mode that has representors, and names these. It may be called
	// again. It returns whether the card can forward packets in hardware.
	Prepare() (hardware bool, err error)
	// Representors lists the names of those that are links of this namespace.
	Representors() ([]string, error)
}
