// Receive authenticated pushes with net/http.
//
//	PUSH_...=... PORT=8080 go run .
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"

	"google.golang.org/api/idtoken"
	"google.golang.org/api/option"
)

// push is the body of a push request. encoding/json decodes the base64 of Data.
type push struct {
	Message struct {
		MessageID string `json:"messageId"`
		Data      []byte `json:"data"`
	} `json:"message"`
}

// pushHubCertificates sends the validator's requests for Google's certificates to PushHub, which has them at the same
// path.
type pushHubCertificates struct{ pushHub *url.URL }

func (certificates pushHubCertificates) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.URL.Scheme, request.URL.Host = certificates.pushHub.Scheme, certificates.pushHub.Host
	request.Host = ""
	return http.DefaultTransport.RoundTrip(request)
}

// receiver handles pushes that are signed for one endpoint.
type receiver struct {
	validator                        *idtoken.Validator
	audience, issuer, serviceAccount string
}

func (r *receiver) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	_, token, _ := strings.Cut(request.Header.Get("Authorization"), " ")
	// This checks the signature, the audience and the expiry. 401 and 403 make PushHub push the message again.
	payload, err := r.validator.Validate(request.Context(), token, r.audience)
	if err != nil {
		http.Error(response, err.Error(), http.StatusUnauthorized)
		return
	}
	if payload.Issuer != r.issuer {
		http.Error(response, "wrong issuer "+payload.Issuer, http.StatusUnauthorized)
		return
	}
	if payload.Claims["email"] != r.serviceAccount || payload.Claims["email_verified"] != true {
		http.Error(response, fmt.Sprintf("wrong service account %v", payload.Claims["email"]), http.StatusForbidden)
		return
	}
	var body push
	if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Printf("received %s: %s\n", body.Message.MessageID, body.Message.Data)
	response.WriteHeader(http.StatusNoContent) // acknowledges the message
}

func main() {
	pushHub, err := url.Parse(os.Getenv("PUSHHUB_URL"))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: pushHubCertificates{pushHub}}
	validator, err := idtoken.NewValidator(context.Background(), option.WithHTTPClient(client))
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /push", &receiver{
		validator:      validator,
		audience:       os.Getenv("PUSH_AUDIENCE"),
		issuer:         os.Getenv("PUSH_ISSUER"),
		serviceAccount: os.Getenv("PUSH_SERVICE_ACCOUNT"),
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
