-- What the image of PostgreSQL runs once, in a new volume: PushHub's role owns its database, and is no superuser.
-- The superuser has no password, so that nobody signs in as one over the network. In the container:
--   docker compose exec postgres psql --username=postgres pushhub
\set password `cat /run/secrets/postgres_password`
CREATE ROLE pushhub LOGIN PASSWORD :'password';
CREATE DATABASE pushhub OWNER pushhub;
ALTER ROLE postgres PASSWORD NULL;
