package api

// Guest is a virtual machine. It is also a container of the daemon, without programs: requests for
// containers find it by its name.
//
//	POST /v1/guests          Guest, with Rules or those of the configuration's [[container]]
//	GET /v1/guests           [Guest...], by name
//	GET /v1/guests/NAME      Guest
//	DELETE /v1/guests/NAME
type Guest struct {
	Name string `json:"name"`
	// VSock is where its VMM gives the host its vsock connections, as --vsock of tsugiki guest attach:
	// an absolute PATH, hybrid:PATH or a context id.
	VSock string `json:"vsock"`
	// Rules are as those of a Registration. An answer does not have them: see Container.
	Rules *Rules `json:"rules,omitempty"`
	// Configured says that the configuration has the guest. Only an answer has it.
	Configured bool `json:"configured,omitempty"`
	// State is only in an answer.
	State *GuestState `json:"state,omitempty"`
}

// GuestState is what has happened to a guest since the daemon has begun to serve it.
type GuestState struct {
	// VMM is the VMM's pid; 0: there is none, or it is not known, as with AF_VSOCK.
	VMM int `json:"vmm"`
	// Boots counts VMMs that have connected. Faults are the times that a VMM or its guest has lost the
	// device because it has broken the device's rules.
	Boots  uint64 `json:"boots"`
	Faults uint64 `json:"faults"`
	// Open are vsock connections. Opened were opened by the guest, Dialed by the host, and Resets ended
	// before both sides had said so.
	Open   int64  `json:"open"`
	Opened uint64 `json:"opened"`
	Dialed uint64 `json:"dialed"`
	Resets uint64 `json:"resets"`
	// FromGuest and ToGuest are bytes.
	FromGuest uint64 `json:"fromGuest"`
	ToGuest   uint64 `json:"toGuest"`
}

// ModeGuest is the mode of a container that is a virtual machine.
const ModeGuest = "guest"
