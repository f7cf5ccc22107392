// Receive authenticated pushes with Express.
//
// PUSH_...=... PORT=8080 node receiver.js
"use strict";

const express = require("express");
const { OAuth2Client } = require("google-auth-library");

const { PORT, PUSHHUB_URL, PUSH_AUDIENCE, PUSH_ISSUER, PUSH_SERVICE_ACCOUNT } = process.env;

// The client keeps the certificates for as long as PushHub's Cache-Control header allows.
const client = new OAuth2Client({
  issuers: [PUSH_ISSUER],
  endpoints: { oauth2FederatedSignonPemCertsUrl: `${PUSHHUB_URL}/oauth2/v1/certs` },
});

// Pass on requests with the right token; 401 and 403 make PushHub push the message again.
async function authenticate(request, response, next) {
  const [, token] = (request.get("Authorization") ?? "").split(" ");
  let claims;
  try {
    // This checks the signature, the issuer, the audience and the expiry.
    claims = (await client.verifyIdToken({ idToken: token, audience: PUSH_AUDIENCE })).getPayload();
  } catch (error) {
    return response.status(401).send(`${error.message}\n`);
  }
  if (claims.email !== PUSH_SERVICE_ACCOUNT || claims.email_verified !== true) {
    return response.status(403).send(`wrong service account ${claims.email}\n`);
  }
  next();
}

const app = express();

// A message may have 10 MB of data, which base64 makes longer.
app.post("/push", authenticate, express.json({ limit: "14mb" }), (request, response) => {
  const { messageId, data } = request.body.message;
  console.log(`received ${messageId}: ${Buffer.from(data ?? "", "base64")}`);
  response.status(204).end(); // acknowledges the message
});

app.listen(PORT, "127.0.0.1");
